// Points of metrics as columns that can be drawn. Pure functions, tested in test/series.test.ts.

import type { Point } from "./api.ts";

/** The points of one trial's metric, by step. */
export interface Series {
  steps: number[];
  /** Seconds since the trial started. */
  times: number[];
  values: (number | null)[];
}

/** Picks one metric out of the points of a chart; what is no finite number is a gap. */
export function seriesOf(points: Point[], name: string, started: number): Series {
  const series: Series = { steps: [], times: [], values: [] };
  for (const point of points) {
    if (!(name in point.values)) continue;
    const value = point.values[name];
    series.steps.push(point.batches);
    series.times.push((Date.parse(point.time) - started) / 1000);
    series.values.push(typeof value === "number" && Number.isFinite(value) ? value : null);
  }
  return series;
}

/** Adds what was reported since; the newer wins where both know a step, as a trial that resumed repeats some. */
export function extended(known: Series, newer: Series): Series {
  const first = newer.steps[0];
  if (first === undefined) return known;
  let keep = known.steps.length;
  while (keep > 0 && (known.steps[keep - 1] ?? 0) >= first) keep -= 1;
  return {
    steps: [...known.steps.slice(0, keep), ...newer.steps],
    times: [...known.times.slice(0, keep), ...newer.times],
    values: [...known.values.slice(0, keep), ...newer.values],
  };
}

/**
 * An exponential moving average, corrected for its start; `weight` in 0..1 is how much of the past stays per point.
 * Gaps stay gaps.
 */
export function smoothed(values: (number | null)[], weight: number): (number | null)[] {
  if (weight <= 0) return values;
  let mean = 0;
  let share = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return mean / share;
  });
}

/** The values that a logarithmic axis can show. */
export function positive(values: (number | null)[]): (number | null)[] {
  return values.map((value) => (value !== null && value > 0 ? value : null));
}
