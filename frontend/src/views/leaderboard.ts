/** The leaderboard. Rows glide to their new rank. */

import { type TemplateResult, html, nothing, svg } from "lit";
import { repeat } from "lit/directives/repeat.js";

import { gliding } from "./motion";
import { fill, place } from "../page";
import type { LeaderboardLine, Picture } from "../picture";
import { grouped, say, sayCount } from "../words";

export function showLeaderboard(picture: Picture, me: string, you: string): void {
  const rows = () => place("leaderboard")?.querySelectorAll<HTMLElement>("tbody tr") ?? [];
  gliding(rows, () => fill("leaderboard", picture.leaderboard.length ? table(picture, me, you) : html`<p class="empty">${picture.nobody}</p>`));
}

function table(picture: Picture, me: string, you: string): TemplateResult {
  return html`<table>
      <thead><tr><th scope="col" class="number"><span class="hidden">${say("Rank")}</span></th><th scope="col">${say("Name")}</th>
        <th scope="col" class="number">${say("Samples")}</th><th scope="col">${say("Recent")}</th>
        ${picture.averages ? html`<th scope="col" class="number">${say("Averaged")}</th>` : nothing}
        <th scope="col" class="number lesser">${say("Steps")}</th><th scope="col" class="number lesser">${say("Machines")}</th></tr></thead>
      <tbody>${repeat(picture.leaderboard, (line) => line.key, (line) => row(line, line.name === me, picture))}</tbody>
    </table>
    ${you ? html`<p class="you">${you}</p>` : nothing}
    <p class="quiet">${picture.given}. <a href=${`/runs/${picture.slug}/leaderboard/`}>${say("Full leaderboard")}</a> ·
      <a href=${`/api/v1/runs/${picture.slug}/ledger`}>${say("All contributions as JSON")}</a></p>`;
}

function row(line: LeaderboardLine, isMine: boolean, picture: Picture): TemplateResult {
  return html`<tr data-key=${line.key} class=${isMine ? "mine" : ""}>
    <td class="number quiet">${line.rank || nothing}</td>
    <td>${line.name}${moved(line.moved)}${line.now ? html` <span class="now">● ${say("now")}</span>` : nothing}</td>
    <td class="number"><eased-number .value=${line.samples}></eased-number></td>
    <td>${spark(line, picture.recent_steps)}</td>
    ${picture.averages ? html`<td class="number">${line.averaged}</td>` : nothing}
    <td class="number lesser"><eased-number .value=${line.rounds}></eased-number></td>
    <td class="number lesser">${line.machines}</td></tr>`;
}

/** How many ranks somebody has gone up or down since the day began. */
function moved(ranks: number): TemplateResult | typeof nothing {
  if (!ranks) return nothing;
  const by = Math.abs(ranks);
  return html` <span class="moved"><span aria-hidden="true">${ranks > 0 ? "▲" : "▼"} ${by}</span><span class="hidden">${ranks > 0 ? "up" : "down"} ${by} since yesterday</span></span>`;
}

/** Somebody's recent samples, as small bars. */
function spark(line: LeaderboardLine, steps: number): TemplateResult {
  const bars = line.heights.map((height, place) => svg`<rect x=${4 * place} width="3" height=${height} />`);
  return html`<svg class=${`spark tint-${line.tint}`} viewBox="0 -16 47 16" role="img"
    aria-label=${sayCount("{recent} in the last {number} step", "{recent} in the last {number} steps", steps, { recent: grouped(line.recent) })}><g transform="scale(1 -2)">${bars}</g></svg>`;
}
