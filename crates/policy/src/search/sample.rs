//! Hyperparameters of one trial: drawn at random, or a point of the grid.

use instep_api::config::{Hyperparameter, Hyperparameters};
use serde_json::{Map, Number, Value};

use super::generator::Generator;

/// Draws all of them, in the order of their names.
pub(super) fn draw(hyperparameters: &Hyperparameters, generator: &mut Generator) -> Map<String, Value> {
    chosen(hyperparameters, &mut |parameter| match parameter {
        Hyperparameter::Const(value) => value.clone(),
        Hyperparameter::Int { minval, maxval, .. } => {
            Value::from(minval.wrapping_add_unsigned(generator.up_to(maxval.abs_diff(*minval))))
        }
        Hyperparameter::Double { minval, maxval, .. } => float(between(*minval, *maxval, generator.unit())),
        Hyperparameter::Log { minval, maxval, base, .. } => {
            float(base.powf(between(*minval, *maxval, generator.unit())))
        }
        Hyperparameter::Categorical { vals } => {
            let index = generator.up_to((vals.len() as u64).saturating_sub(1));
            vals.get(index as usize).cloned().unwrap_or_default()
        }
        Hyperparameter::Group(_) => Value::Null,
    })
}

/// How many points the grid has; `None` if they are too many to count.
pub(super) fn points(hyperparameters: &Hyperparameters) -> Option<u64> {
    hyperparameters.0.values().try_fold(1u64, |points, parameter| {
        points.checked_mul(match parameter {
            Hyperparameter::Group(group) => self::points(group)?,
            parameter => axis(parameter),
        })
    })
}

/// The point of the grid with this number; the last axis changes fastest.
pub(super) fn point(hyperparameters: &Hyperparameters, number: u64) -> Map<String, Value> {
    let mut below = points(hyperparameters).unwrap_or(u64::MAX);
    let mut rest = number;
    chosen(hyperparameters, &mut |parameter| {
        let length = axis(parameter);
        below /= length;
        let place = rest / below.max(1);
        rest %= below.max(1);
        on_axis(parameter, place, length)
    })
}

/// Every hyperparameter with the value that `choose` has for it, groups as groups, in the order of names.
fn chosen(hyperparameters: &Hyperparameters, choose: &mut dyn FnMut(&Hyperparameter) -> Value) -> Map<String, Value> {
    let one = |(name, parameter): (&String, &Hyperparameter)| {
        let value = match parameter {
            Hyperparameter::Group(group) => Value::Object(chosen(group, choose)),
            parameter => choose(parameter),
        };
        (name.clone(), value)
    };
    hyperparameters.0.iter().map(one).collect()
}

/// How many values the grid takes of one hyperparameter.
fn axis(parameter: &Hyperparameter) -> u64 {
    match parameter {
        Hyperparameter::Int { minval, maxval, count } => {
            u64::from(count.unwrap_or(1)).min(maxval.abs_diff(*minval).saturating_add(1)).max(1)
        }
        Hyperparameter::Double { count, .. } | Hyperparameter::Log { count, .. } => {
            u64::from(count.unwrap_or(1)).max(1)
        }
        Hyperparameter::Categorical { vals } => (vals.len() as u64).max(1),
        Hyperparameter::Const(_) | Hyperparameter::Group(_) => 1,
    }
}

fn on_axis(parameter: &Hyperparameter, place: u64, length: u64) -> Value {
    // A single point of a range is its middle.
    let evenly = |minval: f64, maxval: f64| {
        if length == 1 {
            (minval + maxval) / 2.0
        } else {
            minval + place as f64 * (maxval - minval) / (length - 1) as f64
        }
    };
    match parameter {
        Hyperparameter::Const(value) => value.clone(),
        Hyperparameter::Int { minval, maxval, .. } => {
            Value::from(evenly(*minval as f64, *maxval as f64).round() as i64)
        }
        Hyperparameter::Double { minval, maxval, .. } => float(evenly(*minval, *maxval)),
        Hyperparameter::Log { minval, maxval, base, .. } => float(base.powf(evenly(*minval, *maxval))),
        Hyperparameter::Categorical { vals } => vals.get(place as usize).cloned().unwrap_or_default(),
        Hyperparameter::Group(_) => Value::Null,
    }
}

fn between(minval: f64, maxval: f64, share: f64) -> f64 {
    minval + (maxval - minval) * share
}

fn float(number: f64) -> Value {
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}
