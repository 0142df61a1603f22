/** The loss figure and its curve, and the further charts in its place: uPlot, in three inks of the style sheet. */

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { type ChartKey, amountText, chartKey, said as amount, zeroBounds } from "./charts";
import { type Axis, type Measured, type Point, bounds, circles, columns, isWithinReach, levelTexts, perplexityText } from "./curve";
import { choice } from "./parts";
import { clock, grouped, label, say } from "./words";

const SMOOTHING: Record<string, number> = { none: 0, some: 0.8, much: 0.95 };
const WHOLE = rounded([1, 10, 100, 1e3, 1e4, 1e5, 1e6]);
// uPlot's own logarithmic axis knows powers of ten only; a loss lies between two of them.
const LOGARITHMIC = { distr: 100, fwd: Math.log, bwd: Math.exp } as const;
const FINE = rounded([1e-4, 1e-3, 0.01, 0.1, 1, 10]);
const ANY = rounded(Array.from({ length: 31 }, (_, place) => Number(`1e${place - 12}`))); // of amounts: rates, bytes

/** Numbers of the charts as the feed sends them: the curve keeps its first `from` points and continues with `add`. */
export interface Chart {
  readonly from: number;
  readonly add: readonly Point[];
  readonly heldout: readonly Measured[];
  readonly unigram: number | null;
}

interface Curve {
  readonly points: readonly Point[];
  readonly heldout: readonly Measured[];
  readonly unigram: number | null;
}

let axis: Axis = "step";
let smoothing = "none";
let isLog = false;
let latest: Curve | null = null;
let chart: uPlot | null = null;
let shape = "";
/** The part that a reader has chosen to look at; null: all of it. */
let zoom: { readonly min: number; readonly max: number } | null = null;

export function showChart({ from, add, heldout, unigram }: Chart): void {
  latest = { points: [...(latest?.points ?? []).slice(0, from), ...add], heldout, unigram };
  draw();
}

/** Draw in place of the chart that came with the page, and let the choices below it work. */
function mount(): HTMLElement | null {
  const [place, choices] = [document.getElementById("part-chart"), document.getElementById("part-choices")];
  if (!place || !choices) return null;
  chart?.destroy();
  chart = null;
  const curve = document.createElement("div");
  [curve.className, curve.tabIndex] = ["curve", 0];
  curve.setAttribute("role", "img");
  curve.addEventListener("keydown", step);
  place.replaceChildren(curve);
  choices.hidden = false;
  choices.addEventListener("change", (event) => {
    const field = event.target as HTMLInputElement;
    if (field.name === "axis") [axis, zoom] = [field.value as Axis, null];
    else if (field.name === "smoothing") smoothing = field.value;
    else isLog = field.checked;
    draw();
  });
  document.querySelector(".reset")?.addEventListener("click", wholeAgain);
  new ResizeObserver(draw).observe(curve);
  return curve;
}

/** The name of the chart that is drawn. */
function drawn(): ChartKey {
  return chartKey(choice("chart"));
}

function asPerplexity(): boolean {
  return choice("as") === "perplexity";
}

/** Draw again: with another chart, the colours and the width of now. */
export function redraw(): void {
  shape = "";
  document.querySelector(".readout")?.replaceChildren(); // it was of the other chart
  draw();
}

/** A loss in figures. */
function said(loss: number, digits: number): string {
  return asPerplexity() ? perplexityText(loss) : loss.toFixed(digits);
}

function wholeAgain(): void {
  zoom = null;
  if (chart) chart.setData(chart.data);
}

/** Left and right go from point to point, Home and End to the first and the last. */
function step(event: KeyboardEvent): void {
  const last = (latest?.points.length ?? 0) - 1;
  if (!chart || last < 0) return;
  const now = chart.cursor.idx ?? last + 1;
  const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const at = Math.max(0, Math.min(last, to));
  chart.setCursor({ left: chart.valToPos(chart.data[0][at] ?? 0, "x"), top: 0 });
  const told = document.querySelector(".told");
  if (told) told.textContent = document.querySelector(".readout")?.textContent ?? "";
}

/** Whether a part of the curve is looked at, which then stays as new points come. */
function noteZoom(plot: uPlot, key: string): void {
  if (key !== "x") return;
  const { min, max } = plot.scales["x"] ?? {};
  const [first, last] = [plot.data[0][0] ?? 0, plot.data[0].at(-1) ?? 0];
  zoom = min == null || max == null || (min <= first && max >= last) ? null : { min, max };
  document.querySelector(".reset")?.toggleAttribute("hidden", !zoom);
}

/** Draw what is new: points, the size of the place, or its colours. */
export function draw(): void {
  if (!latest?.points.length) return;
  const element = document.querySelector<HTMLElement>("div.curve") ?? mount();
  if (!element?.clientWidth) return;
  const summary = document.querySelector(".axes [data-panel^='chart=']:not([hidden])")?.textContent ?? "";
  element.setAttribute("aria-label", `${summary} ${say("Use the arrow keys to read it point by point.")}`);
  document.querySelector("[data-log]")?.toggleAttribute("hidden", asPerplexity() || drawn() !== "loss");
  const ink = inks(element);
  const wanted = [axis, element.clientWidth, element.clientHeight, latest.unigram, smoothing, isLog, drawn(), asPerplexity(), ...Object.values(ink)].join();
  const data = dataOf(latest);
  const kept = zoom; // a new chart begins with all of it
  if (!chart || shape !== wanted) {
    chart?.destroy();
    shape = wanted;
    chart = new uPlot(optionsOf(element, ink), data, element);
  }
  show(chart, data, kept);
}

/** New points, in the part that is looked at where it is one. */
function show(plot: uPlot, data: uPlot.AlignedData, part: typeof zoom): void {
  plot.batch(() => {
    plot.setData(data, !part);
    if (part) plot.setScale("x", part);
  });
}

function dataOf(curve: Curve): uPlot.AlignedData {
  const { x, values, smooth } = columns(curve.points, axis, SMOOTHING[smoothing] ?? 0, drawn());
  const level = isNear(curve) ? curve.unigram : null;
  return [x, values, smooth, x.map(() => level)];
}

/** The range of the vertical axis. */
function range(plot: uPlot): [number, number] {
  const isLoss = drawn() === "loss";
  return isLoss ? bounds(lossesOf(latest), latest?.unigram ?? null, isLog) : zeroBounds(plot.data[1] as (number | null)[]);
}

/** Whether the line to beat is drawn: near enough to the losses. Otherwise, the key tells where it is. */
function isNear(curve: Curve): boolean {
  return drawn() === "loss" && isWithinReach(lossesOf(curve), curve.unigram);
}

function lossesOf(curve: Curve | null): number[] {
  if (!curve) return [];
  const held = circles(curve.heldout, curve.points, axis).map((circle) => circle.loss);
  return [...curve.points.map((point) => point[1]), ...held];
}

interface Inks {
  readonly accent: string;
  readonly soft: string;
  readonly line: string;
  readonly paper: string;
}

function inks(element: Element): Inks {
  const style = getComputedStyle(element);
  const ink = (name: string) => style.getPropertyValue(name).trim();
  return { accent: ink("--accent"), soft: ink("--soft"), line: ink("--line"), paper: ink("--paper") };
}

function optionsOf({ clientWidth: width, clientHeight: height }: Element, ink: Inks): uPlot.Options {
  const isSmooth = smoothing !== "none";
  const isLoss = drawn() === "loss";
  const texts = isLoss ? (asPerplexity() ? perplexityText : null) : (level: number) => amountText(level, drawn());
  const by = scale();
  const quiet: uPlot.Axis = { stroke: ink.soft, font: `${12 * by}px Figtree, system-ui, sans-serif`, grid: { show: false }, ticks: { show: false } };
  return {
    width,
    height,
    legend: { show: false },
    cursor: { y: false, drag: { x: true, y: false } },
    padding: [12 * by, 20 * by, 0, 0], // at the right half of a number under the last step
    scales: {
      x: { time: axis === "time" },
      y: { range, ...(isLog && isLoss ? LOGARITHMIC : {}) },
    },
    axes: [
      { ...quiet, size: 28 * by, space: (_, _axis, _low, _high, room) => Math.max(50 * by, room / 7), ...(axis === "step" ? { incrs: WHOLE, values: steps } : { values: times }) },
      { ...quiet, size: (isLoss ? 40 : 60) * by, space: (_, _axis, _low, _high, room) => Math.max(30 * by, room / 8), incrs: isLoss ? FINE : ANY, grid: { stroke: ink.line, width: 1, filter: apart }, values: (_, levels) => (texts ? levels.map(texts) : levelTexts(levels)), filter: (_, levels) => levels },
    ],
    series: [
      {},
      { stroke: isSmooth ? ink.line : ink.accent, width: (isSmooth ? 1 : 2) * by, points: { show: false } },
      { show: isSmooth, stroke: ink.accent, width: 2 * by, points: { show: false } },
      { stroke: ink.soft, width: 1.5 * by, dash: [by, 5 * by], cap: "round", points: { show: false } },
    ],
    hooks: { draw: [(plot) => mark(plot, ink)], setCursor: [read], setScale: [noteZoom] },
  };
}

/** The gridlines that keep clear of the dotted line. */
function apart(plot: uPlot, levels: number[]): (number | null)[] {
  const dotted = latest && isNear(latest) ? plot.valToPos(latest.unigram ?? 0, "y") : Infinity;
  return levels.map((level) => (Math.abs(plot.valToPos(level, "y") - dotted) < 10 * scale() ? null : level));
}

/** uPlot's own figures are those of the browser's language, not of the page's. */
function steps(_: uPlot, levels: number[]): string[] {
  return levels.map(grouped);
}

function times(_: uPlot, seconds: number[], _axis: number, _space: number, step: number): string[] {
  return seconds.map((at) => label(new Date(at * 1000), step));
}

/** 1, 2 and 5 times each power of ten. */
function rounded(powers: readonly number[]): number[] {
  return powers.flatMap((power) => [1, 2, 5].map((factor) => factor * power));
}

/** The newest point and the held-out losses. */
function mark(plot: uPlot, ink: Inks): void {
  const { ctx } = plot;
  const end = endOf(plot);
  ctx.save();
  clip(plot);
  ctx.fillStyle = ink.accent;
  if (end) {
    ring(ctx, end.x, end.y);
    ctx.fill();
  }
  const held = latest && drawn() === "loss" ? circles(latest.heldout, latest.points, axis) : [];
  ctx.fillStyle = ink.paper;
  ctx.strokeStyle = ink.soft;
  ctx.lineWidth = 1.5 * dots();
  ctx.setLineDash([]); // uPlot leaves that of the dotted line
  for (const { x, loss } of held) hollow(ctx, plot.valToPos(x, "x", true), plot.valToPos(loss, "y", true));
  ctx.restore();
}

/** Where the newest point is drawn; null where it is a gap. */
function endOf(plot: uPlot): { x: number; y: number } | null {
  const last = plot.data[0].length - 1;
  if (plot.data[1]?.[last] == null) return null;
  const value = plot.data[smoothing === "none" ? 1 : 2]?.[last] ?? 0;
  return { x: plot.valToPos(plot.data[0][last] ?? 0, "x", true), y: plot.valToPos(value, "y", true) };
}

/** Nothing beyond the plot, but for half a circle at its edge. */
function clip({ ctx, bbox }: uPlot): void {
  const edge = 6 * dots();
  ctx.beginPath();
  ctx.rect(bbox.left - edge, bbox.top - edge, bbox.width + 2 * edge, bbox.height + 2 * edge);
  ctx.clip();
}

function ring(ctx: CanvasRenderingContext2D, x: number, y: number): void {
  ctx.beginPath();
  ctx.arc(x, y, 3.5 * dots(), 0, 2 * Math.PI);
}

function hollow(ctx: CanvasRenderingContext2D, x: number, y: number): void {
  ring(ctx, x, y);
  ctx.fill();
  ctx.stroke();
}

/** How large the page's text is: 1 as usual, about 2 on a wall. */
function scale(): number {
  return parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
}

/** Pixels of the canvas in a pixel of the page, when text is as large as usual. */
function dots(): number {
  return devicePixelRatio * scale();
}

/** What stands under the pointer, in words. */
function read(plot: uPlot): void {
  const readout = document.querySelector(".readout");
  const point = latest?.points[plot.cursor.idx ?? -1];
  if (!readout) return;
  const places = point && { step: grouped(point[0]), time: clock(new Date(point[2] * 1000)) };
  readout.textContent = places ? say("step {step}, {time}: {value}", { ...places, value: valueAt(plot, point) }) : "";
}

function valueAt(plot: uPlot, point: Point): string {
  const key = drawn();
  if (key !== "loss") {
    const value = plot.data[1]?.[plot.cursor.idx ?? -1];
    return value == null ? say("not known") : amount(value, key);
  }
  const held = latest?.heldout.find(([step]) => step === point[0]);
  const loss = said(point[1], 3);
  return held ? say("{loss}, held-out {heldout}", { loss, heldout: said(held[2], 3) }) : loss;
}
