import assert from "node:assert/strict";
import { test } from "node:test";
import { ago, brief, bytes, differing, duration, flat, metric, percent, plural, ran, setting, state, took, yaml } from "../src/format.ts";

test("metrics are short and keep what matters", () => {
  const cases: [unknown, string][] = [
    [0, "0"],
    [1234567, "1,234,567"],
    [0.123456789, "0.12346"],
    [-0.5, "\u22120.5"],
    [1e-7, "1.000e\u22127"],
    [12345678.9, "1.235e7"],
    [Number.NaN, "NaN"],
    ["Infinity", "Infinity"],
    [null, "–"],
  ];
  for (const [value, text] of cases) assert.equal(metric(value), text);
});

test("waiting for slots does not count as running", () => {
  const waited = { duration: 7, startTime: "2026-01-01T00:00:00Z", firstRunTime: "2026-01-01T00:00:03.500000Z" };
  assert.equal(ran(waited), "4 s");
  assert.equal(ran({ ...waited, firstRunTime: null }), "");
  assert.equal(took({ firstRunTime: waited.firstRunTime, wallClockTime: 2.4 }), "2 s");
  assert.equal(took({ firstRunTime: null, wallClockTime: 0 }), "");
});

test("lengths of time have their two largest units", () => {
  assert.equal(duration(0.4), "0 s");
  assert.equal(duration(61), "1 m 1 s");
  assert.equal(duration(3600), "1 h");
  assert.equal(duration(90_061), "1 d 1 h");
});

test("short times have a decimal, shares a percent sign and words a number", () => {
  assert.equal(brief(4.25), "4.3 s");
  assert.equal(brief(59.97), "1 m");
  assert.equal(percent(0.98765), "98.8 %");
  assert.deepEqual([plural(1, "step"), plural(1200, "step")], ["1 step", "1,200 steps"]);
});

test("sizes are in units of 1,024", () => {
  assert.equal(bytes(0), "0 B");
  assert.equal(bytes(1536), "1.5 KiB");
  assert.equal(bytes(123 * 1024 * 1024), "123 MiB");
});

test("the past is told by its distance", () => {
  assert.equal(ago(0, 5_000), "just now");
  assert.equal(ago(0, 65_000), "1 min ago");
  assert.equal(ago(0, 7_200_000), "2 h ago");
});

test("states are words", () => {
  assert.equal(state("STATE_COMPLETED"), "Completed");
  assert.equal(state("LOG_LEVEL_WARNING"), "Warning");
});

test("settings are shown as YAML, and odd text is quoted", () => {
  const value = { name: "a b", list: [1, { deep: true }], empty: {}, odd: "yes", markup: "<script>" };
  const text = "name: a b\nlist:\n  - 1\n  - deep: true\nempty: {}\nodd: \"yes\"\nmarkup: \"<script>\"";
  assert.equal(yaml(value).trim(), text);
});

test("settings are flat, and those that differ are found", () => {
  const first = flat({ lr: 0.1, model: { layers: 3, sizes: [1, 2] }, empty: {} });
  assert.deepEqual([...first.keys()], ["lr", "model.layers", "model.sizes", "empty"]);
  assert.equal(setting(first.get("model.sizes")), "[1,2]");
  assert.equal(setting(first.get("missing")), "");
  const second = flat({ lr: 0.2, model: { layers: 3, sizes: [1, 2] }, empty: {}, more: "x" });
  assert.deepEqual(differing([first, second]), ["lr", "more"]);
  assert.deepEqual(differing([first]), []);
});
