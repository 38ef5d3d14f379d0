//! Thins out the points of a chart without hiding what matters: minima, maxima, the first and the last.

/// Which of the values to draw, at most `limit` (and never fewer than 4): the first and the last, and of equal stretches
/// in between the smallest and the largest. Values that are no numbers are neither.
pub fn thin(values: &[f64], limit: usize) -> Vec<usize> {
    let limit = limit.max(4);
    if values.len() <= limit {
        return (0..values.len()).collect();
    }
    let last = values.len() - 1;
    let stretches = (limit - 2) / 2;
    let mut kept = vec![0];
    for stretch in 0..stretches {
        // Of what lies between the first and the last; u128 is not needed, as both factors are lengths in memory.
        let inner = last - 1;
        let range = 1 + inner * stretch / stretches..1 + inner * (stretch + 1) / stretches;
        let numbers = || range.clone().filter(|index| !values[*index].is_nan());
        let lowest = numbers().min_by(|one, other| values[*one].total_cmp(&values[*other]));
        let highest = numbers().max_by(|one, other| values[*one].total_cmp(&values[*other]));
        let mut pair: Vec<usize> = lowest.into_iter().chain(highest).collect();
        pair.sort_unstable();
        pair.dedup();
        kept.extend(pair);
    }
    kept.push(last);
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::thin;

    proptest! {
        #[test]
        fn extremes_and_ends_survive(values in prop::collection::vec(-1e9..1e9f64, 1..3000), limit in 4..500usize) {
            let kept = thin(&values, limit);
            prop_assert!(kept.len() <= limit);
            prop_assert!(kept.is_sorted());
            let of = |indices: &[usize]| {
                let chosen = || indices.iter().map(|index| values[*index]);
                (chosen().fold(f64::MAX, f64::min), chosen().fold(f64::MIN, f64::max))
            };
            let all: Vec<usize> = (0..values.len()).collect();
            prop_assert_eq!(of(&kept), of(&all));
            prop_assert_eq!(kept.first(), Some(&0));
            prop_assert_eq!(kept.last(), Some(&(values.len() - 1)));
        }
    }

    #[test]
    fn values_that_are_no_numbers_are_not_extremes() {
        let mut values = vec![f64::NAN; 100];
        values[57] = 3.0;
        let kept = thin(&values, 10);
        assert!(kept.contains(&57));
        assert!(kept.len() <= 4);
    }
}
