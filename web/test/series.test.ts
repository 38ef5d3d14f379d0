import assert from "node:assert/strict";
import { test } from "node:test";
import { extended, positive, seriesOf, smoothed } from "../src/series.ts";

const at = (step: number, values: Record<string, unknown>) => ({
  batches: step,
  time: new Date(1000 * step).toISOString(),
  values,
});

test("points become columns, and what is no number a gap", () => {
  const points = [at(1, { loss: 2 }), at(2, { other: 1 }), at(3, { loss: "NaN" }), at(4, { loss: 0 })];
  const series = seriesOf(points, "loss", 1000);
  assert.deepEqual(series, { steps: [1, 3, 4], times: [0, 2, 3], values: [2, null, 0] });
});

test("newer points replace those of the steps that they repeat", () => {
  const known = { steps: [1, 2, 3], times: [1, 2, 3], values: [1, 2, 3] };
  const newer = { steps: [3, 4], times: [9, 10], values: [30, 40] };
  assert.deepEqual(extended(known, newer), { steps: [1, 2, 3, 4], times: [1, 2, 9, 10], values: [1, 2, 30, 40] });
  assert.equal(extended(known, { steps: [], times: [], values: [] }), known);
});

test("smoothing keeps a constant, leaves gaps, and follows a jump slowly", () => {
  for (const value of smoothed([5, 5, 5], 0.9)) assert.ok(Math.abs((value ?? 0) - 5) < 1e-9);
  const [first, gap, last] = smoothed([0, null, 10], 0.5);
  assert.equal(first, 0);
  assert.equal(gap, null);
  assert.ok((last ?? 0) > 5 && (last ?? 0) < 10);
  const values = [1, 2];
  assert.equal(smoothed(values, 0), values);
});

test("a logarithmic axis shows positive values only", () => {
  assert.deepEqual(positive([1, 0, -1, null, 2]), [1, null, null, null, 2]);
});
