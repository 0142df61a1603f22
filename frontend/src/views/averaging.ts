/** The last plan: who sends to whom, which part each averages, what limits it. And to some, what links carry. */

import { type TemplateResult, html, nothing, svg } from "lit";
import { repeat } from "lit/directives/repeat.js";

import type { OwnLink, OwnLinks } from "../links";
import { fill } from "../page";
import type { Averager, Picture, Plan, PlanLine } from "../picture";
import { linked } from "../plan";
import { say } from "../words";

export function showAveraging(picture: Picture): void {
  const limit = html`<p class=${picture.plan ? "" : "empty"}>${picture.limit}</p>`;
  fill("averaging", picture.plan ? html`${limit}${drawn(picture.plan, picture)}` : limit);
}

function drawn(plan: Plan, picture: Picture): TemplateResult {
  return html`<p class="quiet">${picture.planned}</p>
    <div class="plan">
      <h3 class="quiet" id="sending">${plan.sending}</h3>
      <h3 class="quiet" id="reducing">${plan.averaging}</h3>
      <ul aria-labelledby="sending">${repeat(plan.senders, (line) => line.key, sender)}</ul>
      <svg viewBox=${`0 0 100 ${plan.height}`} height=${plan.height} preserveAspectRatio="none" aria-hidden="true">${links(plan)}</svg>
      <ul aria-labelledby="reducing">${repeat(plan.averagers, (line) => line.key, averager)}</ul>
    </div>
    <p class="quiet">${plan.note} <a href=${`/api/v1/runs/${picture.slug}/plan`}>${say("Plan as JSON")}</a></p>`;
}

function links(plan: Plan): TemplateResult[] {
  return linked(plan).map(
    ([from, to]) => svg`<path d=${`M0 ${from.y}C50 ${from.y} 50 ${to.y} 100 ${to.y}`} stroke-width=${to.width}
      class=${from.limits ? "limits" : ""} />`,
  );
}

function who(line: PlanLine): TemplateResult {
  const machine = line.machine ? html` <span class="quiet">${line.machine}</span>` : nothing;
  return html`<span class="who">${line.name}${machine}</span>`;
}

function sender(line: PlanLine): TemplateResult {
  return html`<li class=${line.limits ? "limits" : ""}>${who(line)}</li>`;
}

function averager(line: Averager): TemplateResult {
  return html`<li class=${line.limits ? "limits" : ""}>${who(line)} <span class="figure">${line.percent}</span>
    <svg class="thin" viewBox="0 0 100 3" preserveAspectRatio="none" aria-hidden="true">
      ${svg`<rect class="track" width="100" height="3"/><rect width=${line.share} height="3"/>`}</svg></li>`;
}

/** What the links of the reader's machines carry; to the organizer, of all. Nothing where there is none. */
export function showLinks(picture: Picture, shown: OwnLinks): void {
  fill("links", shown.rows.length ? table(picture, shown) : html``);
}

function table(picture: Picture, shown: OwnLinks): TemplateResult {
  return html`<h3>${shown.title}</h3>
    <table class="stacked">
      <thead><tr><th scope="col">${say("Machine")}</th><th scope="col" class="number">${say("Upload")}</th><th scope="col" class="number">${say("Download")}</th></tr></thead>
      <tbody>${repeat(shown.rows, (link) => link.key, (link) => row(link, picture))}</tbody>
    </table>
    <p class="quiet">${shown.note} ${shown.more}</p>`;
}

function row(link: OwnLink, { limiting }: Picture): TemplateResult {
  return html`<tr><td><span>${link.person} <span class="quiet">${link.machine}</span></span></td>
    ${cell(say("Upload"), link.up, limiting.includes(link.up_key))}${cell(say("Download"), link.down, limiting.includes(link.down_key))}</tr>`;
}

function cell(label: string, words: string, limits: boolean): TemplateResult {
  return html`<td class="number" data-label=${label}><span>${limits ? html`<span class="now">${say("limits")}</span> ` : nothing}${words}</span></td>`;
}
