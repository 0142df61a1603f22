/** The leaderboard. Rows glide to their new rank. */

import { type TemplateResult, html, nothing, svg } from "lit";
import { repeat } from "lit/directives/repeat.js";

import { gliding } from "../motion";
import { fill, place } from "../page";
import type { Hand, Picture } from "../picture";
import { counted, grouped } from "../words";

export function showHands(picture: Picture, me: string, you: string): void {
  const rows = () => place("hands")?.querySelectorAll<HTMLElement>("tbody tr") ?? [];
  gliding(rows, () => fill("hands", picture.hands.length ? table(picture, me, you) : nobody));
}

const nobody = html`<p class="empty">Nobody has given a sample yet. The first hands stand here within a minute of joining.</p>`;

function table(picture: Picture, me: string, you: string): TemplateResult {
  const sum = `${counted(picture.people, "person", "people")} on ${counted(picture.machines, "machine", "machines")}`;
  return html`<table>
      <thead><tr><th scope="col" class="number"><span class="hidden">Rank</span></th><th scope="col">Name</th>
        <th scope="col" class="number">Samples</th><th scope="col">Lately</th>
        <th scope="col" class="number lesser">Rounds</th><th scope="col" class="number lesser">Machines</th></tr></thead>
      <tbody>${repeat(picture.hands, (hand) => hand.key, (hand) => row(hand, hand.name === me, picture.lately_steps))}</tbody>
    </table>
    ${you ? html`<p class="you">${you}</p>` : nothing}
    <p class="quiet">${sum} gave ${grouped(picture.samples)} samples. <a href=${`/runs/${picture.slug}/hands/`}>Everybody</a> ·
      <a href=${`/api/v1/runs/${picture.slug}/ledger`}>Every contribution</a></p>`;
}

function row(hand: Hand, isMine: boolean, steps: number): TemplateResult {
  return html`<tr data-key=${hand.key} class=${isMine ? "mine" : ""}>
    <td class="number quiet">${hand.rank}</td>
    <td>${hand.name}${hand.now ? html` <span class="now">● now</span>` : nothing}</td>
    <td class="number"><eased-number .value=${hand.samples}></eased-number></td>
    <td>${spark(hand, steps)}</td>
    <td class="number lesser"><eased-number .value=${hand.rounds}></eased-number></td>
    <td class="number lesser">${hand.machines}</td></tr>`;
}

/** What somebody gave lately, as small bars. */
function spark(hand: Hand, steps: number): TemplateResult {
  const bars = hand.heights.map((height, place) => svg`<rect x=${4 * place} width="3" height=${height} />`);
  return html`<svg class=${`spark tint-${hand.tint}`} viewBox="0 -16 47 16" role="img"
    aria-label=${`${grouped(hand.lately)} in the last ${steps} steps`}><g transform="scale(1 -2)">${bars}</g></svg>`;
}
