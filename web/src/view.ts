// What all charts of a page share.

export interface View {
  /** What lies to the right: the step, or seconds since the trial's start. */
  axis: "step" | "time";
  logarithmic: boolean;
  /** How much of the past a point keeps, 0..1. */
  smoothing: number;
  /** The part of the axis that is shown; all of it if null. */
  range: [number, number] | null;
}
