//! What one reduction does to one number.

/// A number that can be reduced.
pub(super) trait Number: Copy {
    const ZERO: Self;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// As `std::min`: the first one unless the other is smaller, so a NaN in `self` stays.
    fn lesser(self, other: Self) -> Self;
    /// As `std::max`.
    fn greater(self, other: Self) -> Self;
    fn divide(self, ranks: usize) -> Self;
    fn factor(factor: f64) -> Self;
}

/// A number with bits to combine.
pub(super) trait Bits: Copy {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    /// What is combined: a truth value becomes 0 or 1 first.
    fn plain(self) -> Self;
}

/// A left fold: `leave(combine(combine(enter(a), enter(b)), enter(c)))`.
pub(super) trait Rule<T> {
    fn enter(value: T, factor: f64) -> T;
    fn combine(so_far: T, value: T) -> T;
    fn leave(result: T, ranks: usize) -> T;
}

macro_rules! floats {
    ($($float:ty),*) => {$(
        impl Number for $float {
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn add(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self { self * other }
            #[inline(always)]
            fn lesser(self, other: Self) -> Self { if other < self { other } else { self } }
            #[inline(always)]
            fn greater(self, other: Self) -> Self { if self < other { other } else { self } }
            #[inline(always)]
            fn divide(self, ranks: usize) -> Self { self / ranks as $float }
            #[inline(always)]
            fn factor(factor: f64) -> Self { factor as $float }
        }
    )*};
}
floats!(f32, f64);

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Number for $integer {
            const ZERO: Self = 0;
            #[inline(always)]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn lesser(self, other: Self) -> Self { self.min(other) }
            #[inline(always)]
            fn greater(self, other: Self) -> Self { self.max(other) }
            #[inline(always)]
            fn divide(self, ranks: usize) -> Self { (i64::from(self) / ranks as i64) as $integer }
            #[inline(always)]
            fn factor(factor: f64) -> Self { factor as $integer }
        }
        impl Bits for $integer {
            #[inline(always)]
            fn and(self, other: Self) -> Self { self & other }
            #[inline(always)]
            fn or(self, other: Self) -> Self { self | other }
            #[inline(always)]
            fn xor(self, other: Self) -> Self { self ^ other }
            #[inline(always)]
            fn plain(self) -> Self { self }
        }
    )*};
}
integers!(i8, u8, i16, i32, i64);

/// A byte that is zero or not.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bool(u8);

impl Bits for Bool {
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        Bool(self.0 & other.0)
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Bool(self.0 | other.0)
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        Bool(self.0 ^ other.0)
    }
    #[inline(always)]
    fn plain(self) -> Self {
        Bool(u8::from(self.0 != 0))
    }
}

macro_rules! rules {
    ($($name:ident: $bound:ident, $enter:expr, $combine:expr, $leave:expr;)*) => {$(
        pub(super) struct $name;
        impl<T: $bound> Rule<T> for $name {
            #[inline(always)]
            fn enter(value: T, factor: f64) -> T { ($enter)(value, factor) }
            #[inline(always)]
            fn combine(so_far: T, value: T) -> T { ($combine)(so_far, value) }
            #[inline(always)]
            fn leave(result: T, ranks: usize) -> T { ($leave)(result, ranks) }
        }
    )*};
}
rules! {
    Sum: Number, |value, _| value, T::add, |result, _| result;
    Average: Number, |value, _| value, T::add, T::divide;
    Product: Number, |value, _| value, T::multiply, |result, _| result;
    Min: Number, |value, _| value, T::lesser, |result, _| result;
    Max: Number, |value, _| value, T::greater, |result, _| result;
    Premultiplied: Number, |value, factor| T::multiply(T::factor(factor), value), T::add, |result, _| result;
    And: Bits, |value, _| T::plain(value), T::and, |result, _| result;
    Or: Bits, |value, _| T::plain(value), T::or, |result, _| result;
    Xor: Bits, |value, _| T::plain(value), T::xor, |result, _| result;
}
