/** The timeline, in the reader's own time. */

import { type TemplateResult, html } from "lit";
import { repeat } from "lit/directives/repeat.js";

import { fill } from "../page";
import type { ActivityLine, Picture } from "../picture";
import { clock, moment, say } from "../words";

export function showActivity(picture: Picture): void {
  const lines = repeat(picture.activity, (line) => line.key, entry);
  const view = html`<ol class="timeline">${lines}</ol><p class="quiet">${say("Times are in your time zone.")} <a href=${`/runs/${picture.slug}/activity/`}>${say("All activity")}</a></p>`;
  fill("activity", picture.activity.length ? view : html`<p class="empty">${picture.nothing}</p>`);
}

function entry(line: ActivityLine): TemplateResult {
  const at = new Date(line.at);
  return html`<li class=${line.kind}><time datetime=${line.at} title=${moment(at)}>${clock(at)}</time> <span>${line.text}</span></li>`;
}
