"""What dpsql cannot do by its nature, so that the suite does not ask for it."""

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

NOT_HERE = (
    "schemas temp_table_reflection temporary_tables temporary_views foreign_key_constraint_reflection "
    "unique_constraint_reflection index_reflection foreign_keys self_referential_foreign_keys on_update_cascade "
    "autoincrement_insert time time_microseconds uuid_data_type precision_numerics_many_significant_digits precision_numerics_enotation_large returning insert_returning update_returning delete_returning identity_columns savepoints "
    "two_phase_transactions isolation_level autocommit computed_columns sequences comment_reflection"
)


class Requirements(SuiteRequirements):
    """Nothing is written through dpsql, and keys of tables are what the policy says."""


for name in NOT_HERE.split():
    setattr(Requirements, name, property(lambda self: exclusions.closed()))
