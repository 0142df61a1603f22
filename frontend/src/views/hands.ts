/** The leaderboard. Rows glide to their new rank. */

import { type TemplateResult, html, nothing } from "lit";
import { repeat } from "lit/directives/repeat.js";

import { gliding } from "../motion";
import { fill, place } from "../page";
import type { Hand, Picture } from "../picture";
import { counted, grouped } from "../words";

export function showHands(picture: Picture, me: string): void {
  const rows = () => place("hands")?.querySelectorAll<HTMLElement>("tbody tr") ?? [];
  gliding(rows, () => fill("hands", picture.hands.length ? table(picture, me) : nobody));
}

const nobody = html`<p class="empty">Nobody has given a sample yet. The first hands stand here within a minute of joining.</p>`;

function table(picture: Picture, me: string): TemplateResult {
  const sum = `${counted(picture.people, "person", "people")} on ${counted(picture.machines, "machine", "machines")}`;
  return html`<table>
      <thead><tr><th scope="col" class="number"><span class="hidden">Rank</span></th><th scope="col">Name</th>
        <th scope="col" class="number">Samples</th><th scope="col" class="number">Rounds</th>
        <th scope="col" class="number lesser">Machines</th></tr></thead>
      <tbody>${repeat(picture.hands, (hand) => hand.key, (hand) => row(hand, hand.name === me))}</tbody>
    </table>
    <p class="quiet">${sum} gave ${grouped(picture.samples)} samples.
      <a href=${`/api/v1/runs/${picture.slug}/ledger`}>Every contribution</a></p>`;
}

function row(hand: Hand, isMine: boolean): TemplateResult {
  return html`<tr data-key=${hand.key} class=${isMine ? "mine" : ""}>
    <td class="number quiet">${hand.rank}</td>
    <td>${hand.name}${hand.now ? html` <span class="now">● now</span>` : nothing}</td>
    <td class="number"><eased-number .value=${hand.samples}></eased-number></td>
    <td class="number"><eased-number .value=${hand.rounds}></eased-number></td>
    <td class="number lesser">${hand.machines}</td></tr>`;
}
