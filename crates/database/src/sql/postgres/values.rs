//! Values on their way to PostgreSQL and back. What a parameter becomes is said by the type that the server has found for
//! its place, as SQLite's columns do it with their affinity.

use std::borrow::Cow;
use std::error::Error as StdError;

use bytes::BytesMut;
use postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::sql::{Error, Result, Value, ValueRef};

/// A value of a parameter.
#[derive(Debug)]
pub(super) enum Parameter<'a> {
    Null,
    Integer(i64),
    Real(f64),
    Text(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
}

impl<'a> Parameter<'a> {
    pub(super) fn of(value: &'a dyn rusqlite::ToSql) -> Result<Parameter<'a>> {
        use rusqlite::types::ToSqlOutput;
        let parameter = match value.to_sql()? {
            ToSqlOutput::Borrowed(value) => match value {
                ValueRef::Null => Parameter::Null,
                ValueRef::Integer(whole) => Parameter::Integer(whole),
                ValueRef::Real(float) => Parameter::Real(float),
                ValueRef::Text(text) => {
                    Parameter::Text(std::str::from_utf8(text).map_err(|_| Error::Text("is not UTF-8"))?.into())
                }
                ValueRef::Blob(bytes) => Parameter::Bytes(bytes.into()),
            },
            ToSqlOutput::Owned(value) => match value {
                Value::Null => Parameter::Null,
                Value::Integer(whole) => Parameter::Integer(whole),
                Value::Real(float) => Parameter::Real(float),
                Value::Text(text) => Parameter::Text(text.into()),
                Value::Blob(bytes) => Parameter::Bytes(bytes.into()),
            },
            _ => return Err(Error::Text("is of a kind that only SQLite knows")),
        };
        match &parameter {
            Parameter::Text(text) if text.contains('\0') => Err(Error::Text("contains the character NUL")),
            _ => Ok(parameter),
        }
    }
}

impl ToSql for Parameter<'_> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, Box<dyn StdError + Sync + Send>> {
        match (self, kind) {
            (Parameter::Null, _) => Ok(IsNull::Yes),
            (Parameter::Integer(whole), &Type::INT8) => whole.to_sql(kind, out),
            (Parameter::Integer(whole), &Type::INT4) => i32::try_from(*whole)?.to_sql(kind, out),
            (Parameter::Integer(whole), &Type::INT2) => i16::try_from(*whole)?.to_sql(kind, out),
            (Parameter::Integer(whole), &Type::BOOL) => (*whole != 0).to_sql(kind, out),
            (Parameter::Integer(whole), &Type::FLOAT8) => (*whole as f64).to_sql(kind, out),
            // SQLite keeps no NaN either.
            (Parameter::Real(float), _) if float.is_nan() => Ok(IsNull::Yes),
            (Parameter::Real(float), &Type::FLOAT8) => float.to_sql(kind, out),
            (Parameter::Text(text), &Type::TEXT | &Type::VARCHAR | &Type::NAME | &Type::UNKNOWN) => {
                text.as_ref().to_sql(kind, out)
            }
            // A number in a text, for `CAST(? AS BIGINT)`.
            (Parameter::Text(text), &Type::INT8) => text.parse::<i64>()?.to_sql(kind, out),
            (Parameter::Bytes(bytes), &Type::BYTEA) => bytes.as_ref().to_sql(kind, out),
            (value, kind) => Err(format!("{value:?} does not fit into a place for {kind}").into()),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A value of a column, without a copy.
pub(in crate::sql) struct Column<'a>(pub ValueRef<'a>);

impl<'a> FromSql<'a> for Column<'a> {
    fn from_sql(kind: &Type, bytes: &'a [u8]) -> std::result::Result<Column<'a>, Box<dyn StdError + Sync + Send>> {
        Ok(Column(match *kind {
            Type::INT8 => ValueRef::Integer(i64::from_sql(kind, bytes)?),
            Type::INT4 => ValueRef::Integer(i32::from_sql(kind, bytes)?.into()),
            Type::INT2 => ValueRef::Integer(i16::from_sql(kind, bytes)?.into()),
            Type::BOOL => ValueRef::Integer(bool::from_sql(kind, bytes)?.into()),
            Type::FLOAT8 => ValueRef::Real(f64::from_sql(kind, bytes)?),
            Type::TEXT | Type::VARCHAR | Type::NAME | Type::UNKNOWN => ValueRef::Text(bytes),
            Type::BYTEA => ValueRef::Blob(bytes),
            ref other => return Err(format!("a column is of the type {other}, which no statement should give").into()),
        }))
    }

    fn from_sql_null(_: &Type) -> std::result::Result<Column<'a>, Box<dyn StdError + Sync + Send>> {
        Ok(Column(ValueRef::Null))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}
