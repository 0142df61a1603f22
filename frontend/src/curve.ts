/** The columns that the chart draws, by the rules of `peer_agent/plot.py`. Pure. */

import { type ChartKey, valuesOf } from "./charts";

/** Step, nats per token, seconds of UTC; then what the further charts show, null where it is not known. */
export type Point = readonly [
  step: number, loss: number, at: number,
  samples_per_s: number | null, machines: number | null, learning_rate: number | null, bytes_averaged: number | null,
];

/** The loss of one snapshot on held-out data: step, seconds of UTC, nats per token. */
export type Measured = readonly [step: number, at: number, loss: number];

const MARGIN = 0.05; // of the range of losses, beyond them
const LEAST_MARGIN = 0.05; // nats per token

const LEAST = 1e-3; // nats per token, of a logarithmic axis
const MOST_NATS = 20; // of a loss whose perplexity is told

export type Axis = "step" | "time";

export interface Columns {
  readonly x: number[];
  /** Of the chart, as they are and smoothed; null where one is not known. */
  readonly values: (number | null)[];
  readonly smooth: (number | null)[];
}

/** Points as columns; `weight` in [0, 1) is how much of the past stays in the smoothed values. */
export function columns(points: readonly Point[], axis: Axis, weight: number, key: ChartKey = "loss"): Columns {
  const values = valuesOf(points, key);
  return { x: points.map((point) => point[axis === "step" ? 0 : 2]), values, smooth: smoothed(values, weight) };
}

/** Held-out losses where the chart draws them. A snapshot comes in after its step and is never beyond the curve. */
export function circles(heldout: readonly Measured[], points: readonly Point[], axis: Axis): { x: number; loss: number }[] {
  const [last, , newest] = points[points.length - 1] ?? [0, 0, 0];
  const shown = heldout.filter(([step]) => step <= last);
  return shown.map(([step, at, loss]) => ({ x: axis === "step" ? step : Math.min(at, newest), loss }));
}

/** The labels of the vertical axis: all with as many decimals as their step needs. */
export function levelTexts(levels: readonly number[]): string[] {
  const step = levels.length > 1 ? (levels[1] ?? 0) - (levels[0] ?? 0) : 1;
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return levels.map((level) => level.toFixed(decimals));
}

/** e to the power of a loss, in two or three digits. */
export function perplexityText(loss: number): string {
  const value = Math.exp(Math.min(loss, MOST_NATS));
  if (value < 1e3) return value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0);
  const [part, unit] = value < 1e6 ? [value / 1e3, "k"] as const : [value / 1e6, "M"] as const;
  return part.toFixed(part < 10 ? 1 : 0) + unit;
}

/** Exponential mean, corrected for its beginning so that it starts at the first value; gaps stay gaps. */
export function smoothed(values: readonly (number | null)[], weight: number): (number | null)[] {
  let sum = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

/**
 * The range of the vertical axis: all values and the line to beat if it is near, with a margin; as the standing chart has it.
 * A logarithmic one does not reach down to zero.
 */
export function bounds(values: readonly number[], entropy: number | null, isLog = false): [number, number] {
  let [low, high] = ends(values);
  if (entropy !== null && isWithinReach(values, entropy)) [low, high] = [Math.min(low, entropy), Math.max(high, entropy)];
  const margin = Math.max(MARGIN * (high - low), LEAST_MARGIN);
  const foot = Math.max(0, low - margin);
  return [isLog ? Math.max(foot, low / 2, LEAST) : foot, high + margin];
}

function ends(values: readonly number[]): [number, number] {
  return values.reduce<[number, number]>(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

/** Whether the line to beat is so near the values that the chart can show both without flattening them. */
export function isWithinReach(values: readonly number[], entropy: number | null): boolean {
  const [low, high] = ends(values);
  return entropy !== null && Math.max(low - entropy, entropy - high) <= Math.max(high - low, LEAST_MARGIN);
}
