//! Element types and reductions, and which go together.
//!
//! | reduction | f64 f32 f16 bf16 | integers | bool | complex |
//! |---|---|---|---|---|
//! | `Sum` | yes | wraps around | or | yes |
//! | `Average` | sum / world size | wrapped sum / world size, towards zero | no | yes |
//! | `Product` | yes | wraps around | no | no |
//! | `Min`, `Max` | yes | yes | and, or | no |
//! | `BitAnd`, `BitOr`, `BitXor` | no | yes | and, or, exclusive or | no |
//! | `PremultipliedSum` | sum of factor × value | no | no | yes, the factor is real |
//!
//! f16 and bf16 are accumulated in f32 over the values of all ranks and rounded once. `Min` and `Max` treat NaN as gloo's
//! `std::min` and `std::max` do, folded from rank 0 upwards: a NaN of rank 0 stays, a NaN of a later rank is passed over.

use std::fmt;

/// What the elements of a buffer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DataType {
    /// 64-bit float.
    F64 = 1,
    /// 32-bit float.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// Signed byte.
    I8,
    /// Unsigned byte.
    U8,
    /// 16-bit signed integer.
    I16,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// One byte, zero or not.
    Bool,
    /// Two 32-bit floats.
    Complex64,
    /// Two 64-bit floats.
    Complex128,
    /// Bytes of any other type: can be moved, not reduced.
    Bytes,
}

/// How the values of the ranks become one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The sum divided by the number of ranks.
    Average,
    /// The product.
    Product,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// Bitwise and.
    BitAnd,
    /// Bitwise or.
    BitOr,
    /// Bitwise exclusive or.
    BitXor,
    /// The sum of each value times this factor, which is the same on every rank.
    PremultipliedSum(f64),
}

impl DataType {
    /// All of them, in the order of their codes.
    pub const ALL: [DataType; 13] = [
        DataType::F64,
        DataType::F32,
        DataType::F16,
        DataType::BF16,
        DataType::I8,
        DataType::U8,
        DataType::I16,
        DataType::I32,
        DataType::I64,
        DataType::Bool,
        DataType::Complex64,
        DataType::Complex128,
        DataType::Bytes,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DataType::I8 | DataType::U8 | DataType::Bool | DataType::Bytes => 1,
            DataType::F16 | DataType::BF16 | DataType::I16 => 2,
            DataType::F32 | DataType::I32 => 4,
            DataType::F64 | DataType::I64 | DataType::Complex64 => 8,
            DataType::Complex128 => 16,
        }
    }

    /// As users spell it.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::F64 => "f64",
            DataType::F32 => "f32",
            DataType::F16 => "f16",
            DataType::BF16 => "bf16",
            DataType::I8 => "i8",
            DataType::U8 => "u8",
            DataType::I16 => "i16",
            DataType::I32 => "i32",
            DataType::I64 => "i64",
            DataType::Bool => "bool",
            DataType::Complex64 => "complex64",
            DataType::Complex128 => "complex128",
            DataType::Bytes => "bytes",
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<DataType> {
        DataType::ALL.into_iter().find(|dtype| *dtype as u8 == code)
    }
}

impl Reduction {
    /// All of them, the last with factor one half.
    pub const ALL: [Reduction; 9] = [
        Reduction::Sum,
        Reduction::Average,
        Reduction::Product,
        Reduction::Min,
        Reduction::Max,
        Reduction::BitAnd,
        Reduction::BitOr,
        Reduction::BitXor,
        Reduction::PremultipliedSum(0.5),
    ];

    /// As torch spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "SUM",
            Reduction::Average => "AVG",
            Reduction::Product => "PRODUCT",
            Reduction::Min => "MIN",
            Reduction::Max => "MAX",
            Reduction::BitAnd => "BAND",
            Reduction::BitOr => "BOR",
            Reduction::BitXor => "BXOR",
            Reduction::PremultipliedSum(_) => "PREMUL_SUM",
        }
    }

    /// Whether it is defined for a type; asked before anything is sent.
    pub fn check(self, dtype: DataType) -> Result<(), UnsupportedReduction> {
        use DataType as D;
        use Reduction as R;
        let fits = match (self, dtype) {
            (_, D::Bytes) => false,
            (R::Sum, _) => true,
            (R::Average, D::Bool) => false,
            (R::Average, _) => true,
            (R::Product, D::Bool | D::Complex64 | D::Complex128) => false,
            (R::Product, _) => true,
            (R::Min | R::Max, D::Complex64 | D::Complex128) => false,
            (R::Min | R::Max, _) => true,
            (R::BitAnd | R::BitOr | R::BitXor, D::I8 | D::U8 | D::I16 | D::I32 | D::I64 | D::Bool) => true,
            (R::BitAnd | R::BitOr | R::BitXor, _) => false,
            (R::PremultipliedSum(_), D::F64 | D::F32 | D::F16 | D::BF16 | D::Complex64 | D::Complex128) => true,
            (R::PremultipliedSum(_), _) => false,
        };
        if fits { Ok(()) } else { Err(UnsupportedReduction { reduction: self.name(), dtype: dtype.name() }) }
    }

    pub(crate) const fn code(self) -> u8 {
        match self {
            Reduction::Sum => 1,
            Reduction::Average => 2,
            Reduction::Product => 3,
            Reduction::Min => 4,
            Reduction::Max => 5,
            Reduction::BitAnd => 6,
            Reduction::BitOr => 7,
            Reduction::BitXor => 8,
            Reduction::PremultipliedSum(_) => 9,
        }
    }

    pub(crate) fn name_of_code(code: u8) -> Option<&'static str> {
        Reduction::ALL.into_iter().find(|reduction| reduction.code() == code).map(Reduction::name)
    }
}

/// A reduction that is not defined for a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedReduction {
    /// As torch spells it.
    pub reduction: &'static str,
    /// The element type.
    pub dtype: &'static str,
}

impl fmt::Display for UnsupportedReduction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} is not defined for {}", self.reduction, self.dtype)
    }
}

/// A Rust type that is the same bytes as a [`DataType`].
pub trait Element: Copy + Send + 'static {
    /// The type it is in operations.
    const DTYPE: DataType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $rust { const DTYPE: DataType = DataType::$dtype; })*
    };
}
elements!(f64 => F64, f32 => F32, i8 => I8, u8 => U8, i16 => I16, i32 => I32, i64 => I64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back_as_what_they_were() {
        for dtype in DataType::ALL {
            assert_eq!(DataType::from_code(dtype as u8), Some(dtype));
        }
        for reduction in Reduction::ALL {
            assert_eq!(Reduction::name_of_code(reduction.code()), Some(reduction.name()));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = [
            (Reduction::BitAnd, DataType::F32),
            (Reduction::Product, DataType::Bool),
            (Reduction::Max, DataType::Complex64),
            (Reduction::PremultipliedSum(2.0), DataType::I32),
            (Reduction::Sum, DataType::Bytes),
        ];
        for (reduction, dtype) in refused {
            let error = reduction.check(dtype).unwrap_err().to_string();
            assert!(error.contains(reduction.name()) && error.contains(dtype.name()), "{error}");
        }
    }
}
