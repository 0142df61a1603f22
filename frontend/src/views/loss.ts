/** The loss figure and its curve: uPlot, in three inks that come from the style sheet. */

import { html, nothing } from "lit";
import { ref } from "lit/directives/ref.js";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { type Axis, bounds, columns } from "../curve";
import { fill } from "../page";
import type { Picture } from "../picture";
import { clock, grouped } from "../words";

const SMOOTHING: Record<string, number> = { none: 0, some: 0.8, much: 0.95 };
const NARROW_PX = 400;
const WHOLE = [1, 2, 5].flatMap((factor) => [1, 10, 100, 1e3, 1e4, 1e5, 1e6].map((power) => factor * power)).sort((a, b) => a - b);

let axis: Axis = "step";
let smoothing = "none";
let latest: Picture | null = null;
let chart: uPlot | null = null;
let shape = "";

export function showLoss(picture: Picture): void {
  latest = picture;
  const { loss, trend, summary } = picture;
  const figure = html`<span class="big figure"><eased-number .digits=${2} .value=${loss ?? 0}></eased-number></span>
    <span class="quiet">${trend}</span>`;
  fill("loss", html`${loss === null ? nothing : figure}`);
  fill("summary", picture.points.length ? summary : "");
  fill("chart", picture.points.length ? html`<div class="curve" role="img" aria-label=${summary} ${ref(mount)}></div>${choices()}` : empty(picture));
  draw();
}

/** Draw again with the colours and the width of now. */
export function redrawLoss(): void {
  shape = "";
  draw();
}

function empty(picture: Picture) {
  const level = picture.unigram?.toFixed(2);
  const toBeat = html`To beat: <span class="figure">${level}</span> nats per token, what guessing by frequency alone would cost.`;
  return html`<p class="empty">The curve begins with the first step. ${level ? toBeat : nothing}</p>`;
}

function choices() {
  const chooseAxis = (event: Event) => ((axis = chosen(event) as Axis), draw());
  const chooseSmoothing = (event: Event) => ((smoothing = chosen(event)), draw());
  return html`<p class="choices">
    <label>along <select @change=${chooseAxis}><option value="step">steps</option><option value="time">time</option></select></label>
    <label>smoothed <select @change=${chooseSmoothing}><option value="none">not</option><option value="some">some</option><option value="much">much</option></select></label>
    <span class="readout" aria-hidden="true"></span></p>`;
}

function chosen(event: Event): string {
  return (event.target as HTMLSelectElement).value;
}

const resized = new ResizeObserver(() => draw());

function mount(element?: Element): void {
  resized.disconnect();
  chart?.destroy();
  chart = null;
  shape = "";
  if (element) resized.observe(element);
}

function draw(): void {
  const element = document.querySelector<HTMLElement>(".curve");
  if (!element || !latest?.points.length || !element.clientWidth) return;
  const wanted = [axis, element.clientWidth, latest.unigram, smoothing].join();
  const data = dataOf(latest);
  if (chart && shape === wanted) return chart.setData(data);
  chart?.destroy();
  shape = wanted;
  chart = new uPlot(optionsOf(latest, element.clientWidth, inks(element)), data, element);
}

function dataOf(picture: Picture): uPlot.AlignedData {
  const { x, loss, smooth } = columns(picture.points, axis, SMOOTHING[smoothing] ?? 0);
  return [x, loss, smooth, x.map(() => picture.unigram)];
}

interface Inks {
  readonly accent: string;
  readonly soft: string;
  readonly line: string;
}

function inks(element: Element): Inks {
  const style = getComputedStyle(element);
  const ink = (name: string) => style.getPropertyValue(name).trim();
  return { accent: ink("--accent"), soft: ink("--soft"), line: ink("--line") };
}

function optionsOf(picture: Picture, width: number, ink: Inks): uPlot.Options {
  const isSmooth = smoothing !== "none";
  const label: uPlot.Axis = { stroke: ink.soft, font: "12px system-ui, sans-serif", grid: { show: false }, ticks: { show: false } };
  return {
    width,
    height: width < NARROW_PX ? 210 : 280,
    legend: { show: false },
    cursor: { y: false, drag: { x: true, y: false } },
    padding: [12, 8, 0, 0],
    scales: {
      x: { time: axis === "time" },
      y: { range: () => bounds(latest?.points.map((point) => point[1]) ?? [], picture.unigram) },
    },
    axes: [
      { ...label, size: 28, ...(axis === "step" ? { incrs: WHOLE } : {}) },
      { ...label, size: 40, grid: { stroke: ink.line, width: 1 }, values: (_, levels) => alike(levels) },
    ],
    series: [
      {},
      { stroke: isSmooth ? ink.line : ink.accent, width: isSmooth ? 1 : 2, points: { show: false } },
      { show: isSmooth, stroke: ink.accent, width: 2, points: { show: false } },
      { stroke: ink.soft, width: 1.5, dash: [1, 5], cap: "round", points: { show: false } },
    ],
    hooks: { draw: [(plot) => mark(plot, picture.unigram, ink)], setCursor: [read] },
  };
}

/** All with as many decimals as their step needs. */
function alike(levels: number[]): string[] {
  const decimals = Math.max(0, -Math.floor(Math.log10((levels[1] ?? 1) - (levels[0] ?? 0)) + 1e-9));
  return levels.map((level) => level.toFixed(decimals));
}

/** The newest point, and what the dotted line is. */
function mark(plot: uPlot, entropy: number | null, ink: Inks): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const [x, y] = [plot.data[0], plot.data[smoothing === "none" ? 1 : 2]];
  const last = x.length - 1;
  const at = { x: plot.valToPos(x[last] ?? 0, "x", true), y: plot.valToPos(y?.[last] ?? 0, "y", true) };
  ctx.save();
  ctx.fillStyle = ink.accent;
  ctx.beginPath();
  ctx.arc(at.x, at.y, 3.5 * ratio, 0, 2 * Math.PI);
  ctx.fill();
  if (entropy !== null) {
    const level = plot.valToPos(entropy, "y", true);
    const isFree = at.y - level > 24 * ratio; // at the end where the curve is not
    ctx.fillStyle = ink.soft;
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = isFree ? "right" : "left";
    ctx.fillText(`unigram ${entropy.toFixed(2)}`, isFree ? bbox.left + bbox.width : bbox.left + 4 * ratio, level - 6 * ratio);
  }
  ctx.restore();
}

/** What stands under the pointer, in words. */
function read(plot: uPlot): void {
  const readout = document.querySelector(".readout");
  const point = latest?.points[plot.cursor.idx ?? -1];
  if (!readout) return;
  readout.textContent = point ? `step ${grouped(point[0])}, ${clock(new Date(point[2] * 1000))}: ${point[1].toFixed(3)}` : "";
}
