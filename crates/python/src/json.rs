//! Python's values as JSON text, as metrics travel.
//!
//! Written straight into a string, because this runs on the training thread: no value is copied into a tree first.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::{
    Bound, PyAny, PyAnyMethods, PyBoolMethods, PyDictMethods, PyListMethods, PyResult, PyStringMethods, PyTupleMethods,
    PyTypeMethods,
};
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

/// Lists in dictionaries in lists: deeper than this is a mistake, or a structure that contains itself.
const DEEPEST: usize = 64;

/// Writes metrics; an error names the metric.
pub(crate) fn write_metrics(text: &mut String, metrics: &Bound<'_, PyDict>) -> PyResult<()> {
    text.push('{');
    let mut first = true;
    for (name, value) in metrics.iter() {
        if !std::mem::take(&mut first) {
            text.push(',');
        }
        let name = name.str()?;
        let name = name.to_cow()?;
        if value.is_none() {
            return Err(PyValueError::new_err(format!("the metric `{name}` is None")));
        }
        write_text(text, &name);
        text.push(':');
        write(text, &value).map_err(|error| {
            let named = PyTypeError::new_err(format!("the metric `{name}` cannot be reported"));
            named.set_cause(metrics.py(), Some(error));
            named
        })?;
    }
    text.push('}');
    Ok(())
}

/// Writes a value. Numbers that JSON does not have are written as Determined does: `"NaN"`, `"Infinity"`, `"-Infinity"`.
pub(crate) fn write(text: &mut String, value: &Bound<'_, PyAny>) -> PyResult<()> {
    write_value(text, value, 0)
}

fn write_value(text: &mut String, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<()> {
    if depth > DEEPEST {
        return Err(PyValueError::new_err("the value is nested too deeply"));
    }
    if let Ok(number) = value.cast_exact::<PyFloat>() {
        write_number(text, number.extract()?);
    } else if let Ok(word) = value.cast::<PyString>() {
        write_text(text, word.to_cow()?.as_ref());
    } else if let Ok(flag) = value.cast::<PyBool>() {
        text.push_str(if flag.is_true() { "true" } else { "false" });
    } else if value.is_instance_of::<PyInt>() {
        // Of any size: Python writes the digits.
        text.push_str(value.str()?.to_cow()?.as_ref());
    } else if let Ok(number) = value.cast::<PyFloat>() {
        write_number(text, number.extract()?);
    } else if value.is_none() {
        text.push_str("null");
    } else if let Ok(object) = value.cast::<PyDict>() {
        write_object(text, object, depth)?;
    } else if let Ok(list) = value.cast::<PyList>() {
        write_list(text, list.iter(), depth)?;
    } else if let Ok(tuple) = value.cast::<PyTuple>() {
        write_list(text, tuple.iter(), depth)?;
    } else {
        write_foreign(text, value, depth)?;
    }
    Ok(())
}

/// Scalars and arrays of numpy and torch, which know how to become Python's own.
fn write_foreign(text: &mut String, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<()> {
    for method in ["tolist", "item"] {
        if value.hasattr(method)? {
            let plain = value.call_method0(method)?;
            // Something that becomes itself would never end.
            if !plain.is(value) {
                return write_value(text, &plain, depth + 1);
            }
        }
    }
    let kind = value.get_type();
    let name = kind.name()?;
    Err(PyTypeError::new_err(format!(
        "a {} cannot be reported: it is neither a number nor text nor JSON",
        name.to_cow()?
    )))
}

fn write_object(text: &mut String, object: &Bound<'_, PyDict>, depth: usize) -> PyResult<()> {
    text.push('{');
    let mut first = true;
    for (key, value) in object.iter() {
        if !std::mem::take(&mut first) {
            text.push(',');
        }
        match key.cast::<PyString>() {
            Ok(word) => write_text(text, word.to_cow()?.as_ref()),
            Err(_) => write_text(text, key.str()?.to_cow()?.as_ref()),
        }
        text.push(':');
        write_value(text, &value, depth + 1)?;
    }
    text.push('}');
    Ok(())
}

fn write_list<'py>(text: &mut String, values: impl Iterator<Item = Bound<'py, PyAny>>, depth: usize) -> PyResult<()> {
    text.push('[');
    let mut first = true;
    for value in values {
        if !std::mem::take(&mut first) {
            text.push(',');
        }
        write_value(text, &value, depth + 1)?;
    }
    text.push(']');
    Ok(())
}

fn write_number(text: &mut String, number: f64) {
    use std::fmt::Write;
    if number.is_finite() {
        // `{:?}` is the shortest text that reads back as the same number, and always valid JSON.
        let _ = write!(text, "{number:?}");
    } else if number.is_nan() {
        text.push_str("\"NaN\"");
    } else {
        text.push_str(if number > 0.0 { "\"Infinity\"" } else { "\"-Infinity\"" });
    }
}

fn write_text(text: &mut String, word: &str) {
    text.push('"');
    for letter in word.chars() {
        match letter {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            control if control < ' ' => {
                use std::fmt::Write;
                let _ = write!(text, "\\u{:04x}", control as u32);
            }
            letter => text.push(letter),
        }
    }
    text.push('"');
}
