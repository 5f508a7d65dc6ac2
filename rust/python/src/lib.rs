//! The Python module `dpsql._native`: exact values go in, noisy ones come out.

mod errors;

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Decimal128Type;
use arrow_array::{Array, ArrayRef, Decimal128Array, RecordBatch, RecordBatchReader, StructArray};
use arrow_schema::{DataType, Field, Schema};
use arrow_select::concat::concat_batches;
use arrow_select::filter::filter_record_batch;
use dpsql_noise::{Mechanism, Scale};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use pyo3_arrow::PyRecordBatchReader;
use pyo3_arrow::ffi::{ArrayIterator, to_stream_pycapsule};

use errors::Failure;

const INTEGER: DataType = DataType::Decimal128(38, 0);

type Reader = Box<dyn RecordBatchReader + Send>;

/// Noisy columns. An Arrow stream that can be read any number of times.
#[pyclass(frozen, module = "dpsql._native")]
struct Noisy(RecordBatch);

#[pymethods]
impl Noisy {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let field = Field::new_struct("", self.0.schema().fields().clone(), false);
        let array: ArrayRef = Arc::new(StructArray::from(self.0.clone()));
        let batches = ArrayIterator::new([Ok(array)], field.into());
        Ok(to_stream_pycapsule(py, Box::new(batches), requested_schema)?)
    }

    fn __len__(&self) -> usize {
        self.0.num_rows()
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
    let py = exact.py();
    let mechanism = match mechanism {
        "laplace" => Mechanism::Laplace,
        "gaussian" => Mechanism::Gaussian,
        _ => return Err(Failure::Mechanism.into()),
    };
    let scales = scales.iter().map(|scale| Scale::new(*scale)).collect::<Result<Vec<_>, _>>();
    let scales = scales.map_err(Failure::Noise)?;
    let reader = exact
        .extract()
        .and_then(PyRecordBatchReader::into_reader)
        .map_err(|error| Failure::raised(py, error))?;
    // The engine may need the GIL while it fills the stream, so reading is done without it as well.
    Ok(py.detach(|| release(reader, mechanism, &scales, threshold))?)
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
        let mut columns = exact.columns()[..keys].to_vec();
        for (index, scale) in scales.iter().enumerate() {
            let exact = integers_of(&exact, keys + index)?;
            let noisy = dpsql_noise::add_noise(mechanism, *scale, exact)?;
            columns.push(Arc::new(Decimal128Array::from(noisy).with_data_type(INTEGER)));
        }
        let noisy = RecordBatch::try_new(schema.clone(), columns).map_err(|_| Failure::Columns)?;
        shown.push(match threshold {
            None => noisy,
            Some(least) => {
                let counts = noisy.column(keys).as_primitive::<Decimal128Type>();
                let mask = counts.values().iter().map(|value| Some(*value >= least)).collect();
                filter_record_batch(&noisy, &mask).map_err(|_| Failure::Columns)?
            }
        });
    }
    Ok(Noisy(concat_batches(&schema, &shown).map_err(|_| Failure::Stream)?))
}

fn integers_of(batch: &RecordBatch, column: usize) -> Result<Vec<i128>, Failure> {
    let array = batch.column(column);
    if array.null_count() != 0 {
        return Err(Failure::Null);
    }
    Ok(array.as_primitive::<Decimal128Type>().values().to_vec())
}

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{Noisy, add_noise};
}
