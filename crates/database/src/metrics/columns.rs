//! How columns of whole numbers are written: small ones take few bytes, and regular ones take the same byte again and again.
//! Reading distrusts every byte.

use super::chunk::DecodeError;

/// Writes a number, seven bits a byte, the lowest first.
pub(super) fn put_varint(body: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        body.push(value as u8 | 0x80);
        value >>= 7;
    }
    body.push(value as u8);
}

pub(super) fn take_varint(rest: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, left) = rest.split_first().ok_or(DecodeError::Damaged)?;
        *rest = left;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(DecodeError::Damaged)
}

/// A number that counts what follows in memory.
pub(super) fn take_count(rest: &mut &[u8]) -> Result<usize, DecodeError> {
    usize::try_from(take_varint(rest)?).map_err(|_| DecodeError::Damaged)
}

pub(super) fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], DecodeError> {
    let (taken, left) = rest.split_at_checked(count).ok_or(DecodeError::Damaged)?;
    *rest = left;
    Ok(taken)
}

/// Writes numbers as the change of the change from the one before, which is zero where they grow evenly.
pub(super) fn put_changes_of_changes(body: &mut Vec<u8>, values: impl Iterator<Item = i64>) {
    let (mut before, mut change_before) = (0i64, 0i64);
    for value in values {
        let change = value.wrapping_sub(before);
        put_varint(body, zigzag(change.wrapping_sub(change_before)));
        (before, change_before) = (value, change);
    }
}

pub(super) fn take_changes_of_changes(rest: &mut &[u8], count: usize) -> Result<Vec<i64>, DecodeError> {
    // Each takes a byte at least, so a count beyond the content is damage, and no reason to allocate.
    if count > rest.len() {
        return Err(DecodeError::Damaged);
    }
    let (mut value, mut change) = (0i64, 0i64);
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        change = change.wrapping_add(unzigzag(take_varint(rest)?));
        value = value.wrapping_add(change);
        values.push(value);
    }
    Ok(values)
}

pub(super) fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

pub(super) fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}
