"""Every scalar function and macro that DuckDB has is a row of the table, or on this list, with the reason why it is not."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.compiler.label import KEYWORDS
from dpsql.kernel.functions import FUNCTIONS, NAMES
from dpsql.policy.catalog import fold

# How the engine names what stands in a query as a sign or as words.
SIGNS = {
    **{
        name: name
        for name in ("+", "-", "*", "/", "//", "%", "&", "|", "||", "<<", ">>", "~", "=", "!=", "<", "<=", ">", ">=")
    },
    **dict.fromkeys(("~~", "!~~", "like_escape", "not_like_escape"), "LIKE"),
    **dict.fromkeys(("~~*", "!~~*", "ilike_escape", "not_ilike_escape"), "ILIKE"),
    "**": "pow",
    "^": "pow",
    "@": "abs",
    "^@": "starts_with",
    "~~~": "LIKE",
    "&&": "list_has_any",
    "@>": "list_has_all",
    "<@": "list_has_all",
    **{f"IS {word}DISTINCT FROM": f"IS {word}DISTINCT FROM" for word in ("", "NOT ")},
    "if": "CASE",
    "__between": "BETWEEN",
    "__cast": "CAST",
}
REFUSED = {
    "another value next time: time, chance, counters": """
        ago current_date current_localtime current_localtimestamp currval gen_random_uuid get_current_time
        get_current_timestamp nextval now pg_conf_load_time pg_postmaster_start_time random setseed setval today
        transaction_timestamp txid_current uuid uuidv4 uuidv7""",
    "reads the catalogue, the settings or the session, or writes to a log": """
        col_description current_catalog current_connection_id current_database current_query current_query_id current_role
        current_schema current_schemas current_setting current_transaction_id current_user format_pg_type format_type
        get_block_size getvariable has_any_column_privilege has_column_privilege has_database_privilege
        has_foreign_data_wrapper_privilege has_function_privilege has_language_privilege has_schema_privilege
        has_sequence_privilege has_server_privilege has_table_privilege has_tablespace_privilege in_search_path
        inet_client_addr inet_client_port inet_server_addr inet_server_port map_to_pg_oid obj_description
        parse_duckdb_log_message pg_collation_is_visible pg_conversion_is_visible pg_function_is_visible
        pg_get_constraintdef pg_get_expr pg_get_viewdef pg_has_role pg_is_other_temp_schema pg_my_temp_schema
        pg_opclass_is_visible pg_operator_is_visible pg_opfamily_is_visible pg_table_is_visible pg_ts_config_is_visible
        pg_ts_dict_is_visible pg_ts_parser_is_visible pg_ts_template_is_visible pg_type_is_visible session_user
        shobj_description user version write_log""",
    "reads or runs SQL": "json_deserialize_sql json_serialize_plan json_serialize_sql",
    "takes the time that it is told to": "pg_sleep sleep_ms",
    "raises by design": "assert_true error",
    "tells how the engine stores or types a value": """
        alias can_cast_implicitly constant_or_null create_sort_key get_type index_key is_histogram_other_bin pg_typeof
        stats typeof vector_type""",
    "raises for some values, and no simple guard keeps those away": """
        binom decimal_division parse_formatted_bytes path_join""",
    "a sign that the parser does not read, for which there is a word: 5 ! is factorial(5)": "!__postfix",
    "an aggregate": "geomean geometric_mean wavg weighted_avg",
    "state of aggregates": "combine finalize to_aggregate_state",
    "lists: takes a function or the name of one": """
        aggregate apply array_aggr array_aggregate array_apply array_filter array_reduce array_transform filter invoke
        list_aggr list_aggregate list_apply list_filter list_reduce list_transform reduce""",
    "lists: vectors, sums and statistics in floating point, as the engine happens to add them up": """
        <-> <=> array_cosine_distance array_cosine_similarity array_cross_product array_distance array_dot_product
        array_inner_product array_negative_dot_product array_negative_inner_product list_cosine_distance
        list_cosine_similarity list_distance list_dot_product list_entropy list_inner_product list_kurtosis
        list_kurtosis_pop list_mad list_negative_dot_product list_negative_inner_product list_product
        list_sem list_skewness list_stddev_pop list_stddev_samp list_var_pop list_var_samp""",
    "lists: nested, or of a length that a cell gives": """
        array_resize array_value array_zip equi_width_bins flatten generate_series generate_subscripts list_histogram
        list_resize list_zip range unpivot_list""",
    "lists: the order of equal elements, or an estimate, is the engine's": """
        array_grade_up grade_up list_approx_count_distinct list_grade_up""",
    "lists: places in another list, for which list[i] and list[i:j] are there": """
        array_select array_where list_select list_where""",
    "makes rows, or has a word of its own: array_to_string": """
        array_to_string_comma_default list_string_agg regexp_split_to_table""",
    "JSON": """
        ->> array_to_json from_json from_json_strict json json_array json_array_length json_contains
        json_copy_strftime_if_date json_copy_strftime_if_timestamp json_deep_merge json_exists json_extract
        json_extract_path json_extract_path_text json_extract_string json_group_array json_group_object
        json_group_structure json_insert json_keys json_merge_patch json_merge_patch_diff json_normalize json_object
        json_pretty json_quote json_remove json_replace json_set json_strip_nulls json_structure json_transform
        json_transform_strict json_type json_valid json_value row_to_json to_json""",
    "structs, maps, unions and variants": """
        element_at map map_concat map_contains map_contains_entry map_contains_value map_entries map_extract
        map_extract_value map_from_entries map_keys map_values remap_struct row struct_concat struct_contains
        struct_extract struct_extract_at struct_has struct_indexof struct_insert struct_keys struct_pack struct_position
        struct_update struct_values switch union_extract union_tag union_value variant_array_length
        variant_bytes_to_variant variant_comparator variant_contains variant_exists variant_extract
        variant_extract_string variant_group_array variant_keys variant_normalize variant_to_parquet_variant
        variant_type variant_typeof""",
    "BLOB, BIT, UUID, ENUM, UHUGEINT, and types as values": """
        base64 bit_position bitstring bitstring_byte_comparable cast_to_type decode encode enum_code enum_first enum_last
        enum_range enum_range_boundary from_base64 from_binary from_hex get_bit hive_partition_component icu_sort_key
        make_type md5_number md5_number_lower md5_number_upper octet_length replace_type set_bit to_base64 unbin unhex
        uuid_extract_timestamp uuid_extract_version""",
    "times of day, time zones and nanoseconds": """
        make_time make_timestamp_ns make_timestamptz timetz_byte_comparable timezone timezone_hour timezone_minute
        to_timestamp""",
    "geometry": """
        st_asbinary st_asgeojson st_astext st_aswkb st_aswkt st_crs st_geomfromgeojson st_geomfromwkb
        st_intersects_extent st_setcrs vertex_extract""",
}
INTERNAL = ("__internal_", "collate_", "icu_collate_")  # of the engine itself; and collations, which give BLOBs
NOT = {name for names in REFUSED.values() for name in names.split()}


def every() -> list[str]:
    """The names of functions as they are in this version of DuckDB, with the extensions that come with it."""
    rows = duckdb.sql(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type IN ('scalar', 'macro')"
    )
    return sorted(name for (name,) in rows.fetchall())


def test_every_name_is_listed_once() -> None:
    """A new version of DuckDB with a new function fails here: put it into the table, or say why it is not there."""
    listed = {name for name in every() if fold(name) in NAMES or name in SIGNS}
    assert not listed & NOT
    assert {name for name in every() if not name.startswith(INTERNAL)} == listed | NOT
    assert {SIGNS[name] for name in SIGNS} <= set(FUNCTIONS)
    assert len(" ".join(REFUSED.values()).split()) == len(NOT)
    page = (Path(__file__).parent.parent / "docs" / "sql.md").read_text(encoding="utf-8")
    assert f"In all {len(listed)} of DuckDB's functions" in page


@pytest.fixture(scope="module")
def session() -> dpsql.Session:
    con = duckdb.connect()
    con.execute("CREATE TABLE t (id INTEGER, s VARCHAR)")
    policy = {
        "dataset": {"id": "t"},
        "budget": {"epsilon": 1, "delta": 1e-6, "accounting": "gdp"},
        "tables": {"t": {"person": "id", "max_rows_contributed": 1}},
    }
    return dpsql.connect(con, policy=policy, ledger=":memory:")


@pytest.mark.parametrize("count", range(4))
def test_what_is_not_listed_is_refused(count: int, session: dpsql.Session) -> None:
    """Below the noise and above it, bare and quoted, whatever the number of arguments."""
    for name in every():
        if fold(name) in NAMES or name == "if":
            continue
        for spelled in {name if name.isidentifier() else f'"{name}"', f'"{name}"'}:
            for argument, query in (("s", "SELECT count(*) FROM t WHERE {} IS NULL"), ("count(*)", "SELECT {} FROM t")):
                call = f"{spelled}({', '.join([argument] * count)})"
                with pytest.raises(dpsql.Refused):
                    session.explain(query.format(call))


def test_keywords_are_the_engines() -> None:
    """Names of columns and functions that the engine quotes, as these are among its words."""
    found = duckdb.sql("SELECT keyword_name FROM duckdb_keywords()").fetchall()
    assert {word for (word,) in found} == KEYWORDS
