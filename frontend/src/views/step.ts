/** The step that is being made, or the last ones where they are short: who gives how much, and how fast it goes. */

import { type TemplateResult, html, nothing, svg } from "lit";
import { repeat } from "lit/directives/repeat.js";

import "./motion";
import { fill } from "../page";
import type { Bar, Picture } from "../picture";
import { machinesWithoutBar } from "../place";
import { grouped, say, sayCount } from "../words";

export function showStep(picture: Picture): void {
  fill("step", html`<h2 id="step">${picture.step_title}</h2>${picture.bars.length ? atWork(picture) : html`<p class="empty">${picture.resting}</p>`} ${figures(picture)}`);
}

function atWork(picture: Picture): TemplateResult {
  return html`${picture.target ? step(picture) : lastSteps(picture)}
    <ul class="machines-now">${repeat(picture.bars, (bar) => bar.key, machine)}</ul>${moreMachines(picture)}`;
}

function moreMachines(picture: Picture): TemplateResult | typeof nothing {
  const count = machinesWithoutBar(picture);
  if (!count) return nothing;
  return html` <p class="quiet"><a href=${`/runs/${picture.slug}/swarm/`}>${sayCount("and {number} more machine", "and {number} more machines", count)}</a></p>`;
}

function step(picture: Picture): TemplateResult {
  return html`<progress .max=${picture.target} .value=${picture.done} aria-label=${say("Samples in this step")}></progress>
    <p class="under"><span class="figure"><eased-number .value=${picture.done}></eased-number> / ${grouped(picture.target)}</span>
      ${say("samples")}${picture.phase ? ` · ${picture.phase}` : nothing}</p>`;
}

/** Steps that are too short to be watched are shown together; where one has its bar there is as much room. */
function lastSteps(picture: Picture): TemplateResult {
  return html`<div class="no-bar"></div><p class="under"><span class="figure"><eased-number .value=${picture.done}></eased-number></span> ${say("samples by person")}</p>`;
}

function machine(bar: Bar): TemplateResult {
  return html`<li><span class="who">${bar.name}${bar.state === "syncing" ? html` <span class="quiet">${say("catching up")}</span>` : nothing}</span>
    <span class="figure"><eased-number .value=${bar.done}></eased-number></span>
    <svg class=${`thin tint-${bar.tint}`} viewBox="0 0 100 3" preserveAspectRatio="none" aria-hidden="true">
      ${svg`<rect class="track" width="100" height="3"/><rect width=${bar.share} height="3"/>`}</svg></li>`;
}

function figures(picture: Picture): TemplateResult {
  const speed = html`<eased-number .digits=${1} .value=${picture.samples_per_s}></eased-number> ${say("samples/s")} ·
    <eased-number .value=${picture.tokens_per_s}></eased-number> ${picture.units}/s · ${say("{number} training", { number: grouped(picture.training) })} · `;
  return html`<p class="quiet">${picture.bars.length ? speed : nothing}${picture.others}</p>`;
}
