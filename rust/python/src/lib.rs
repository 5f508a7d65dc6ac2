//! The Python module `dpsql._native`: exact values go in, noisy ones come out.

mod errors;
mod limits;

use std::sync::{Arc, Mutex};

use arrow_array::cast::AsArray;
use arrow_array::types::Decimal128Type;
use arrow_array::{
    Array, ArrayRef, BooleanArray, Decimal128Array, RecordBatch, RecordBatchIterator,
    RecordBatchReader, StructArray, UInt64Array,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use arrow_select::filter::filter_record_batch;
use dpsql_limit::{Counted, Owners};
use dpsql_noise::{Mechanism, Scale, Selection};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use pyo3_arrow::PyRecordBatchReader;
use pyo3_arrow::ffi::{ArrayIterator, to_stream_pycapsule};

use errors::Failure;
use limits::Limits;

/// The system's gives large pieces back at once, and pages are handed out by one lock: two threads were 1.3 x one.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

const INTEGER: DataType = DataType::Decimal128(38, 0);

type Reader = Box<dyn RecordBatchReader + Send>;

/// Noisy columns. An Arrow stream that can be read any number of times.
#[pyclass(frozen, module = "dpsql._native")]
struct Noisy(SchemaRef, Vec<RecordBatch>);

#[pymethods]
impl Noisy {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let field = Field::new_struct("", self.0.fields().clone(), false);
        let arrays: Vec<_> = self.1.iter().cloned().map(StructArray::from).collect();
        let arrays = arrays.into_iter().map(|array| Ok(Arc::new(array) as ArrayRef));
        let batches = ArrayIterator::new(arrays, field.into());
        Ok(to_stream_pycapsule(py, Box::new(batches), requested_schema)?)
    }

    fn __len__(&self) -> usize {
        self.1.iter().map(RecordBatch::num_rows).sum()
    }
}

/// Adds fresh noise to the last columns: `scales` are theirs, in order. With a threshold, the columns
/// before them are keys, and only rows whose first noisy value reaches the threshold are kept.
#[pyfunction]
#[pyo3(signature = (exact, mechanism, scales, threshold=None))]
#[allow(clippy::needless_pass_by_value)] // PyO3 gives arguments by value
fn add_noise(
    exact: &Bound<PyAny>,
    mechanism: &str,
    scales: Vec<f64>,
    threshold: Option<i128>,
) -> PyResult<Noisy> {
    let mechanism = mechanism_of(mechanism)?;
    let scales = scales_of(&scales)?;
    let reader = reader_of(exact)?;
    // The engine may need the GIL while it fills the stream, so reading is done without it as well.
    Ok(exact.py().detach(|| release(reader, mechanism, &scales, threshold))?)
}

/// Public keys, in the order of the result. They can be used any number of times.
#[pyclass(frozen, module = "dpsql._native")]
struct Keys(dpsql_limit::Keys);

#[pymethods]
impl Keys {
    #[new]
    fn new(keys: &Bound<PyAny>) -> PyResult<Self> {
        let reader = reader_of(keys)?;
        let keys = keys.py().detach(|| Ok::<_, Failure>(dpsql_limit::Keys::new(&whole(reader)?)?));
        Ok(Self(keys?))
    }
}

/// Exact integers that Python cannot read: noise is added to them, or a choice made by them, and then they are gone.
#[pyclass(frozen, module = "dpsql._native")]
struct Totals(Mutex<Option<Reader>>);

impl Totals {
    fn of(exact: RecordBatch) -> Self {
        let schema = exact.schema();
        Self(Mutex::new(Some(Box::new(RecordBatchIterator::new([Ok(exact)], schema)))))
    }

    fn take(&self) -> Result<Reader, Failure> {
        let mut reader = self.0.lock().map_err(|_| Failure::Stream)?;
        reader.take().ok_or(Failure::Stream)
    }
}

#[pymethods]
impl Totals {
    #[new]
    fn new(exact: &Bound<PyAny>) -> PyResult<Self> {
        Ok(Self(Mutex::new(Some(reader_of(exact)?))))
    }

    /// As `add_noise`.
    #[pyo3(signature = (mechanism, scales, threshold=None))]
    #[allow(clippy::needless_pass_by_value)] // PyO3 gives arguments by value
    fn with_noise(
        &self,
        py: Python,
        mechanism: &str,
        scales: Vec<f64>,
        threshold: Option<i128>,
    ) -> PyResult<Noisy> {
        let mechanism = mechanism_of(mechanism)?;
        let scales = scales_of(&scales)?;
        let reader = self.take()?;
        Ok(py.detach(|| release(reader, mechanism, &scales, threshold))?)
    }

    /// The columns of these names, of this table and of others; the first columns are the keys of its rows.
    #[allow(clippy::needless_pass_by_value)] // PyO3 gives arguments by value
    fn beside(
        &self,
        py: Python,
        others: Vec<Bound<Self>>,
        keys: usize,
        names: Vec<String>,
    ) -> PyResult<Self> {
        let others = others.iter().map(|other| other.get().take());
        let readers: Vec<_> = std::iter::once(self.take()).chain(others).collect();
        let exact = py.detach(|| {
            let tables = readers.into_iter().map(|reader| whole(reader?));
            Ok::<_, Failure>(dpsql_limit::beside(
                &tables.collect::<Result<Vec<_>, _>>()?,
                keys,
                &names,
            )?)
        });
        Ok(Self::of(exact?))
    }

    /// As the function of this name.
    fn choose(&self, py: Python, rate: f64, weights: &Bound<PyAny>) -> PyResult<Vec<usize>> {
        chosen(py, self.take()?, rate, weights)
    }
}

/// Limits what each person's rows add, and adds all of it up by keys, with `sums` that need no limits.
#[pyfunction]
#[pyo3(signature = (rows, sums, declared, limits, owners=None, persons=None))]
#[allow(clippy::needless_pass_by_value)] // PyO3 gives arguments by value
fn limit(
    py: Python,
    rows: Option<&Bound<PyAny>>,
    sums: Option<&Bound<PyAny>>,
    declared: Option<&Bound<Keys>>,
    limits: Limits,
    owners: Option<Vec<Bound<PyAny>>>,
    persons: Option<&Bound<PyAny>>,
) -> PyResult<Totals> {
    let values = limits.values;
    let limits = limits.checked()?;
    if values {
        let (Some(rows), None, None, None) = (rows, sums, persons, owners.iter().flatten().next())
        else {
            return Err(Failure::Limit(dpsql_limit::Error::Columns).into());
        };
        let (reader, declared) = (reader_of(rows)?, declared.map(|keys| &keys.get().0));
        let exact = py.detach(|| dpsql_limit::values(&limits, declared, reader));
        return Ok(Totals::of(exact.map_err(Failure::Limit)?));
    }
    // An engine's connection gives one stream at a time: each is read before the next is asked for.
    let read = |stream: Option<&Bound<PyAny>>| -> Result<Option<RecordBatch>, Failure> {
        let reader = stream.map(reader_of).transpose()?;
        reader.map(|reader| py.detach(|| whole(reader))).transpose()
    };
    let sums = read(sums)?;
    let declared = declared.map(|keys| &keys.get().0);
    let mut found = None;
    for pairs in owners.iter().flatten() {
        let reader = reader_of(pairs)?;
        let before = found.take();
        let made = py.detach(|| Owners::new(reader, before)).map_err(Failure::Limit)?;
        found = Some(made);
    }
    let persons = persons.map(reader_of).transpose()?;
    let counted = persons
        .map(|persons| py.detach(|| Counted::new(&limits, found.take(), persons)))
        .transpose()
        .map_err(Failure::Limit)?;
    let reader = rows.map(reader_of).transpose()?;
    let exact =
        py.detach(|| dpsql_limit::limit(&limits, declared, sums.as_ref(), found, counted, reader));
    Ok(Totals::of(exact.map_err(Failure::Limit)?))
}

/// All rows in one batch.
fn whole(reader: Reader) -> Result<RecordBatch, Failure> {
    let batches = batches(reader)?;
    concat_batches(&batches[0].schema(), &batches).map_err(|_| Failure::Stream)
}

/// All rows, and an empty batch before them, so that their types are known if there are none.
fn batches(reader: Reader) -> Result<Vec<RecordBatch>, Failure> {
    let empty = RecordBatch::new_empty(reader.schema());
    let all = std::iter::once(Ok(empty)).chain(reader).collect::<Result<_, _>>();
    all.map_err(|_| Failure::Stream)
}

fn mechanism_of(name: &str) -> Result<Mechanism, Failure> {
    match name {
        "laplace" => Ok(Mechanism::Laplace),
        "sliced_laplace" => Ok(Mechanism::Sliced),
        "gaussian" => Ok(Mechanism::Gaussian),
        _ => Err(Failure::Mechanism),
    }
}

fn scales_of(scales: &[f64]) -> Result<Vec<Scale>, Failure> {
    let scales = scales.iter().map(|scale| Scale::new(*scale)).collect::<Result<Vec<_>, _>>();
    scales.map_err(Failure::Noise)
}

/// Adds discrete Laplace noise of magnitude at most `bound`.
#[pyfunction]
fn add_truncated(exact: &Bound<PyAny>, scale: f64, bound: u64) -> PyResult<Noisy> {
    let scale = Scale::new(scale).map_err(Failure::Noise)?;
    let reader = reader_of(exact)?;
    let mechanism = Mechanism::Truncated(bound);
    Ok(exact.py().detach(|| release(reader, mechanism, &[scale], None))?)
}

/// For each list of weights, chooses row i of its own with probability proportional to
/// `weights[i] * exp(rate * score)`.
#[pyfunction]
fn choose(exact: &Bound<PyAny>, rate: f64, weights: &Bound<PyAny>) -> PyResult<Vec<usize>> {
    chosen(exact.py(), reader_of(exact)?, rate, weights)
}

fn chosen(py: Python, reader: Reader, rate: f64, weights: &Bound<PyAny>) -> PyResult<Vec<usize>> {
    let weights: Vec<Vec<u128>> =
        weights.extract().map_err(|_| Failure::Noise(dpsql_noise::Error::Weights))?;
    Ok(py.detach(|| {
        let scores = one_vector(reader)?;
        Ok::<_, Failure>(dpsql_noise::choose_each(rate, &scores, &weights)?)
    })?)
}

/// Chooses a cell for the quantile `over / under`.
#[pyfunction]
fn quantile(
    exact: &Bound<PyAny>,
    over: u64,
    under: u64,
    epsilon: f64,
    widths: &Bound<PyAny>,
) -> PyResult<usize> {
    let widths: Vec<u128> =
        widths.extract().map_err(|_| Failure::Noise(dpsql_noise::Error::Weights))?;
    let reader = reader_of(exact)?;
    Ok(exact.py().detach(|| {
        let rows = one_vector(reader)?;
        Ok::<_, Failure>(dpsql_noise::quantile(epsilon, over, under, &widths, &rows)?)
    })?)
}

/// Replaces each of the answers 0 .. k - 1 by randomized response.
#[pyfunction]
fn respond(exact: &Bound<PyAny>, k: u64, epsilon: f64) -> PyResult<Noisy> {
    let reader = reader_of(exact)?;
    Ok(exact.py().detach(|| {
        let answers = dpsql_noise::respond(epsilon, k, one_vector(reader)?)?;
        let answers = Decimal128Array::from(answers).with_data_type(INTEGER);
        let columns: [(_, ArrayRef); 1] = [("answer", Arc::new(answers))];
        one_batch(columns)
    })?)
}

/// Keeps the keys of the rows that optimal partition selection shows, from the persons in the last column.
#[pyfunction]
fn show(exact: &Bound<PyAny>, epsilon: f64, delta: f64) -> PyResult<Noisy> {
    let reader = reader_of(exact)?;
    Ok(exact.py().detach(|| {
        let schema = reader.schema();
        let keys: Vec<_> = (0..schema.fields().len().saturating_sub(1)).collect();
        if keys.is_empty() || *schema.field(keys.len()).data_type() != INTEGER {
            return Err(Failure::Keys);
        }
        let schema = Arc::new(schema.project(&keys).map_err(|_| Failure::Keys)?);
        let mut shown = Vec::new();
        for batch in reader {
            let exact = batch.map_err(|_| Failure::Stream)?;
            let persons = integers_of(exact.column(keys.len()))?;
            let mask = dpsql_noise::show(epsilon, delta, persons)?.into();
            let exact = exact.project(&keys).map_err(|_| Failure::Keys)?;
            shown.push(filter_record_batch(&exact, &mask).map_err(|_| Failure::Keys)?);
        }
        joined(schema, &shown)
    })?)
}

/// n independent events of probability `over / under`, or exp(-over / under).
#[pyfunction]
#[pyo3(signature = (over, under, n, *, exp=false))]
fn flips(py: Python, over: u128, under: u128, n: usize, exp: bool) -> PyResult<Noisy> {
    Ok(py.detach(|| {
        let events = BooleanArray::from(dpsql_noise::flips(over, under, exp, n)?);
        let columns: [(_, ArrayRef); 1] = [("event", Arc::new(events))];
        one_batch(columns)
    })?)
}

/// Chooses from each vector of scores the places of the largest noisy ones.
#[pyfunction]
#[pyo3(signature = (exact, noise, rate, k=1))]
fn select(exact: &Bound<PyAny>, noise: &str, rate: f64, k: usize) -> PyResult<Noisy> {
    let selection = match (noise, k) {
        ("gumbel", 1..) => Selection::Gumbel(k),
        ("exponential", 1) => Selection::Exponential,
        ("laplace", 1) => Selection::Laplace,
        _ => return Err(Failure::Selection.into()),
    };
    let reader = reader_of(exact)?;
    Ok(exact.py().detach(|| {
        let (scores, ends) = scores_of(reader)?;
        let ends = ends.unwrap_or_else(|| vec![scores.len()]);
        let places = dpsql_noise::select(selection, rate, &scores, &ends)?;
        let mut vectors = Vec::with_capacity(places.len());
        let mut start = 0;
        for (vector, end) in (0..).zip(ends) {
            vectors.resize(vectors.len() + k.min(end - start), vector);
            start = end;
        }
        let columns: [(_, ArrayRef); 2] = [
            ("vector", Arc::new(UInt64Array::from(vectors))),
            ("place", Arc::new(UInt64Array::from(places))),
        ];
        one_batch(columns)
    })?)
}

/// How many 64-bit random words all calls have drawn so far, for measurements.
#[pyfunction]
fn words_drawn() -> u64 {
    dpsql_noise::words_drawn()
}

fn one_batch<const N: usize>(columns: [(&str, ArrayRef); N]) -> Result<Noisy, Failure> {
    let batch = RecordBatch::try_from_iter(columns).map_err(|_| Failure::Columns)?;
    Ok(Noisy(batch.schema(), vec![batch]))
}

/// What is shown, in one batch: nothing tells how much was hidden between.
fn joined(schema: SchemaRef, shown: &[RecordBatch]) -> Result<Noisy, Failure> {
    let batch = concat_batches(&schema, shown).map_err(|_| Failure::Stream)?;
    Ok(Noisy(schema, vec![batch]))
}

fn one_vector(reader: Reader) -> Result<Vec<i128>, Failure> {
    match scores_of(reader)? {
        (scores, None) => Ok(scores),
        _ => Err(Failure::Scores),
    }
}

/// All scores, and where the vectors end if each row is one.
fn scores_of(reader: Reader) -> Result<(Vec<i128>, Option<Vec<usize>>), Failure> {
    let schema = reader.schema();
    let [field] = &schema.fields()[..] else { return Err(Failure::Scores) };
    let (mut scores, mut ends) = (Vec::new(), Vec::new());
    let listed = match field.data_type() {
        DataType::List(item) if *item.data_type() == INTEGER => true,
        kind if *kind == INTEGER => false,
        _ => return Err(Failure::Scores),
    };
    for batch in reader {
        let batch = batch.map_err(|_| Failure::Stream)?;
        if !listed {
            scores.extend_from_slice(integers_of(batch.column(0))?);
            continue;
        }
        let lists = batch.column(0).as_list::<i32>();
        if lists.null_count() != 0 {
            return Err(Failure::Null);
        }
        for list in lists.iter().flatten() {
            scores.extend_from_slice(integers_of(&list)?);
            ends.push(scores.len());
        }
    }
    Ok((scores, listed.then_some(ends)))
}

fn reader_of(exact: &Bound<PyAny>) -> Result<Reader, Failure> {
    exact
        .extract()
        .and_then(PyRecordBatchReader::into_reader)
        .map_err(|error| Failure::raised(exact.py(), error))
}

fn release(
    reader: Reader,
    mechanism: Mechanism,
    scales: &[Scale],
    threshold: Option<i128>,
) -> Result<Noisy, Failure> {
    let schema = reader.schema();
    let keys = schema.fields().len().checked_sub(scales.len()).ok_or(Failure::Columns)?;
    let integers = schema.fields()[keys..].iter().all(|field| *field.data_type() == INTEGER);
    if !integers || scales.is_empty() || (keys != 0) != threshold.is_some() {
        return Err(Failure::Columns);
    }
    let mut fields = schema.fields()[..keys].to_vec();
    for field in &schema.fields()[keys..] {
        fields.push(Arc::new(Field::new(field.name(), INTEGER, false)));
    }
    let schema = Arc::new(Schema::new(fields));
    // Batch by batch: what is hidden is dropped at once, so that its size does not matter later.
    let mut shown = Vec::new();
    for batch in reader {
        let exact = batch.map_err(|_| Failure::Stream)?;
        let columns = scales.iter().zip(&exact.columns()[keys..]);
        let columns = columns.map(|(scale, column)| Ok((*scale, integers_of(column)?)));
        let columns = columns.collect::<Result<Vec<_>, Failure>>()?;
        let mut start = 0;
        for part in dpsql_noise::add_noise(mechanism, &columns)? {
            let rows = part.first().map_or(0, Vec::len);
            let mut columns = exact.slice(start, rows).columns()[..keys].to_vec();
            start += rows;
            for noisy in part {
                columns.push(Arc::new(Decimal128Array::from(noisy).with_data_type(INTEGER)));
            }
            let noisy =
                RecordBatch::try_new(schema.clone(), columns).map_err(|_| Failure::Columns)?;
            shown.push(match threshold {
                None => noisy,
                Some(least) => {
                    let counts = noisy.column(keys).as_primitive::<Decimal128Type>();
                    let mask = counts.values().iter().map(|value| Some(*value >= least)).collect();
                    filter_record_batch(&noisy, &mask).map_err(|_| Failure::Columns)?
                }
            });
        }
    }
    if threshold.is_some() { joined(schema, &shown) } else { Ok(Noisy(schema, shown)) }
}

fn integers_of(array: &ArrayRef) -> Result<&[i128], Failure> {
    if array.null_count() != 0 {
        return Err(Failure::Null);
    }
    Ok(array.as_primitive::<Decimal128Type>().values())
}

#[pymodule]
mod _native {
    use pyo3::prelude::*;

    /// What a panic says may have exact values in it.
    #[pymodule_init]
    #[allow(clippy::unnecessary_wraps)]
    fn init(_module: &Bound<PyModule>) -> PyResult<()> {
        std::panic::set_hook(Box::new(|_| {}));
        Ok(())
    }

    #[pymodule_export]
    use super::{
        Keys, Noisy, Totals, add_noise, add_truncated, choose, flips, limit, quantile, respond,
        select, show, words_drawn,
    };
}
