/** The columns that the chart draws. Pure. */

import type { Point } from "./picture";

export type Axis = "step" | "time";

export interface Columns {
  readonly x: number[];
  readonly loss: number[];
  readonly smooth: number[];
}

/** Points as columns; `weight` in [0, 1) is how much of the past stays in the smoothed loss. */
export function columns(points: readonly Point[], axis: Axis, weight: number): Columns {
  const loss = points.map((point) => point[1]);
  return { x: points.map((point) => point[axis === "step" ? 0 : 2]), loss, smooth: smoothed(loss, weight) };
}

/** Exponential mean, corrected for its beginning so that it starts at the first value. */
export function smoothed(values: readonly number[], weight: number): number[] {
  let sum = 0;
  let mass = 0;
  return values.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

/** The range of the vertical axis: all values and the line to beat, with a margin; as the standing chart has it. */
export function bounds(values: readonly number[], entropy: number | null): [number, number] {
  const all = entropy === null ? values : [...values, entropy];
  let low = Infinity;
  let high = -Infinity;
  for (const value of all) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const margin = Math.max(0.05 * (high - low), 0.05);
  return [Math.max(0, low - margin), high + margin];
}
