//! The Python module `dpsql._native`: exact values go in, noisy ones come out.

mod errors;

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Decimal128Type;
use arrow_array::{Array, ArrayRef, Decimal128Array, RecordBatch, RecordBatchReader, StructArray};
use arrow_schema::{DataType, Field, Schema};
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

/// Adds fresh noise to each value of each column: `scales[i]` is the scale for column i.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // PyO3 gives arguments by value
fn add_noise(exact: &Bound<PyAny>, mechanism: &str, scales: Vec<f64>) -> PyResult<Noisy> {
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
    Ok(py.detach(|| release(reader, mechanism, &scales))?)
}

fn release(reader: Reader, mechanism: Mechanism, scales: &[Scale]) -> Result<Noisy, Failure> {
    let schema = reader.schema();
    let integers = schema.fields().iter().all(|field| *field.data_type() == INTEGER);
    if !integers || schema.fields().len() != scales.len() || scales.is_empty() {
        return Err(Failure::Columns);
    }
    let columns = read(reader)?.into_iter().zip(scales).map(|(exact, scale)| {
        let noisy = dpsql_noise::add_noise(mechanism, *scale, exact)?;
        Ok(Arc::new(Decimal128Array::from(noisy).with_data_type(INTEGER)) as ArrayRef)
    });
    let columns = columns.collect::<Result<_, Failure>>()?;
    let fields = schema.fields().iter().map(|field| Field::new(field.name(), INTEGER, false));
    let schema = Schema::new(fields.collect::<Vec<_>>());
    Ok(Noisy(RecordBatch::try_new(schema.into(), columns).map_err(|_| Failure::Columns)?))
}

/// The columns of the whole stream, all of type `INTEGER`.
fn read(reader: Reader) -> Result<Vec<Vec<i128>>, Failure> {
    let mut columns = vec![Vec::new(); reader.schema().fields().len()];
    for batch in reader {
        let batch = batch.map_err(|_| Failure::Stream)?;
        for (column, array) in columns.iter_mut().zip(batch.columns()) {
            if array.null_count() != 0 {
                return Err(Failure::Null);
            }
            column.extend_from_slice(array.as_primitive::<Decimal128Type>().values());
        }
    }
    Ok(columns)
}

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{Noisy, add_noise};
}
