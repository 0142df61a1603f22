/** The timeline, in the reader's own time. */

import { type TemplateResult, html } from "lit";
import { repeat } from "lit/directives/repeat.js";

import { fill } from "../page";
import type { Happening, Picture } from "../picture";
import { clock, moment } from "../words";

export function showHappened(picture: Picture): void {
  const lines = repeat(picture.happenings, (line) => line.key, entry);
  const view = html`<ol class="timeline">${lines}</ol><p class="quiet">Times are in your time zone.</p>`;
  fill("happened", picture.happenings.length ? view : html`<p class="empty">Nothing yet.</p>`);
}

function entry(line: Happening): TemplateResult {
  const at = new Date(line.at);
  return html`<li class=${line.kind}><time datetime=${line.at} title=${moment(at)}>${clock(at)}</time> <span>${line.text}</span></li>`;
}
