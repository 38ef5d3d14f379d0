//! The values that a statement is run with.

use super::ToSql;

/// Values for the places of a statement, in their order.
pub(crate) trait Params {
    /// Hands them over.
    fn with<R>(self, run: impl FnOnce(&[&dyn ToSql]) -> R) -> R;
}

/// Values of several types: `params![name, 3]`.
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        &[$(&$value as &dyn $crate::sql::ToSql),*] as &[&dyn $crate::sql::ToSql]
    };
}
pub(crate) use params;

impl Params for &[&dyn ToSql] {
    fn with<R>(self, run: impl FnOnce(&[&dyn ToSql]) -> R) -> R {
        run(self)
    }
}

// A type of its own, so that `[]` needs no annotation.
impl Params for [&(dyn ToSql + Send + Sync); 0] {
    fn with<R>(self, run: impl FnOnce(&[&dyn ToSql]) -> R) -> R {
        run(&[])
    }
}

macro_rules! arrays {
    ($($length:literal)*) => {$(
        impl<T: ToSql> Params for [T; $length] {
            fn with<R>(self, run: impl FnOnce(&[&dyn ToSql]) -> R) -> R {
                run(&self.each_ref().map(|value| value as &dyn ToSql))
            }
        }
    )*};
}
arrays!(1 2 3 4 5 6 7 8);

/// As many values as an iterator gives.
pub(crate) struct ParamsFromIter<I>(I);

/// As many values as an iterator gives.
pub(crate) fn params_from_iter<I: IntoIterator<Item: ToSql>>(values: I) -> ParamsFromIter<I> {
    ParamsFromIter(values)
}

impl<I: IntoIterator<Item: ToSql>> Params for ParamsFromIter<I> {
    fn with<R>(self, run: impl FnOnce(&[&dyn ToSql]) -> R) -> R {
        let values: Vec<I::Item> = self.0.into_iter().collect();
        let values: Vec<&dyn ToSql> = values.iter().map(|value| value as &dyn ToSql).collect();
        run(&values)
    }
}
