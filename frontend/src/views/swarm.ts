/** Who is online follows by itself while the page is looked at: nobody needs it by the second, so it is fetched anew. */

const LOOK_MS = 10_000;
const SPREAD_MS = 5_000; // not all of a crowd at once

async function look(): Promise<void> {
  const place = document.querySelector<HTMLElement>("[data-live=swarm]");
  if (!place || document.hidden || place.contains(document.activeElement)) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector("[data-live=swarm]");
  if (fresh && fresh.innerHTML !== place.innerHTML) place.replaceChildren(...fresh.childNodes);
}

async function follow(): Promise<never> {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS + SPREAD_MS * Math.random()));
    await look().catch(() => undefined); // a site that is away is asked again
  }
}

void follow();

export {}; // a module, whose names are its own
