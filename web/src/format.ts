// Values as people read them. Pure functions, tested in test/format.test.ts.
import type { Experiment, Trial } from "./api.ts";

const MINUS = "\u2212";

/** A metric: five significant digits, whole numbers whole, very large and very small ones with an exponent. */
export function metric(value: unknown): string {
  if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  let text: string;
  if (Number.isInteger(value) && size < 1e9) text = size.toLocaleString("en-US");
  else if (size >= 1e6 || size < 1e-4) text = size.toExponential(3).replace("e+", "e").replace("e-", `e${MINUS}`);
  else text = String(Number(size.toPrecision(5)));
  return value < 0 ? MINUS + text : text;
}

/** A whole number with separators. */
export function count(value: number): string {
  return value.toLocaleString("en-US");
}

/** Bytes in units of 1,024. */
export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : Number(value.toPrecision(3))} ${units[unit]}`;
}

/** A length of time, in its two largest units. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const parts: [number, string][] = [
    [Math.floor(whole / 86_400), "d"],
    [Math.floor(whole / 3_600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "m"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .filter(([amount]) => amount > 0)
    .map(([amount, unit]) => `${amount} ${unit}`)
    .join(" ");
}

/** How long an experiment has run, without the time in which it waited for its first slots; nothing before it has. */
export function ran(experiment: Pick<Experiment, "duration" | "startTime" | "firstRunTime">): string {
  if (!experiment.firstRunTime) return "";
  const waited = Math.trunc((Date.parse(experiment.firstRunTime) - Date.parse(experiment.startTime)) / 1000);
  return duration(experiment.duration - waited);
}

/** How long a trial has run, without the times in which it waited for slots, as `instep trial list` says it. */
export function took(trial: Pick<Trial, "firstRunTime" | "wallClockTime">): string {
  return trial.firstRunTime ? duration(trial.wallClockTime) : "";
}

/** A length of time, with a decimal below a minute. */
export function brief(seconds: number): string {
  return seconds < 59.95 ? `${seconds.toFixed(1)} s` : duration(Math.round(seconds));
}

/** A share, 0 to 1. */
export function percent(share: number): string {
  return `${(share * 100).toFixed(1)} %`;
}

/** `1 step`, `2 steps` */
export function plural(amount: number, what: string): string {
  return `${count(amount)} ${what}${amount === 1 ? "" : "s"}`;
}

/** How long ago a moment was, both in milliseconds. */
export function ago(then: number, now: number): string {
  const seconds = Math.floor((now - then) / 1000);
  if (seconds < 10) return "just now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3_600)} h ago`;
  if (seconds < 7 * 86_400) return `${Math.floor(seconds / 86_400)} d ago`;
  return new Date(then).toLocaleDateString("en-GB", { year: "numeric", month: "short", day: "numeric" });
}

/** A moment in this browser's zone. */
export function moment(text: string): string {
  return new Date(text).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}

/** The time of day of a log line, with milliseconds. */
export function clock(text: string): string {
  const date = new Date(text);
  const two = (value: number): string => String(value).padStart(2, "0");
  const milliseconds = String(date.getMilliseconds()).padStart(3, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${milliseconds}`;
}

/** `STATE_COMPLETED` or `ACTIVE` as a word. */
export function state(name: string): string {
  const word = name.replace(/^(STATE_|LOG_LEVEL_)/, "").toLowerCase();
  return word.charAt(0).toUpperCase() + word.slice(1).replaceAll("_", " ");
}

/** Nested settings under names with dots. */
export function flat(value: unknown, name = "", into = new Map<string, unknown>()): Map<string, unknown> {
  if (value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) {
    for (const [key, item] of Object.entries(value)) flat(item, name ? `${name}.${key}` : key, into);
  } else if (name) into.set(name, value);
  return into;
}

/** The value of a setting. */
export function setting(value: unknown): string {
  if (value === undefined) return "";
  return typeof value === "number" ? metric(value) : typeof value === "string" ? value : JSON.stringify(value);
}

/** The names of settings that are not the same everywhere, in order. */
export function differing(all: Map<string, unknown>[]): string[] {
  const names = [...new Set(all.flatMap((settings) => [...settings.keys()]))].sort();
  return names.filter((name) => new Set(all.map((settings) => setting(settings.get(name)))).size > 1);
}

/** JSON as YAML, for reading: no anchors, no tags. */
export function yaml(value: unknown, indent = ""): string {
  if (Array.isArray(value)) {
    if (value.length === 0) return "[]";
    return value.map((item) => `\n${indent}- ${yaml(item, `${indent}  `).replace(/^\n\s*/, "")}`).join("");
  }
  if (value !== null && typeof value === "object") {
    const entries = Object.entries(value);
    if (entries.length === 0) return "{}";
    const line = ([name, item]: [string, unknown]): string => {
      const text = yaml(item, `${indent}  `);
      return `\n${indent}${scalar(name)}:${text.startsWith("\n") ? "" : " "}${text}`;
    };
    return entries.map(line).join("");
  }
  return typeof value === "string" ? scalar(value) : String(value);
}

function scalar(text: string): string {
  const plain = /^[A-Za-z_/][\w ./-]*$/.test(text) && !/^(true|false|null|yes|no|on|off)$/i.test(text);
  return plain && !text.endsWith(" ") ? text : JSON.stringify(text);
}
