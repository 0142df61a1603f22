/** What each machine does now follows by itself while the page is looked at. Without this it says what it did then. */

const LOOK_MS = 1500;

async function look(): Promise<void> {
  if (document.hidden) return;
  const answer = await fetch(location.pathname, { headers: { Accept: "text/html" } });
  if (!answer.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const cell of document.querySelectorAll<HTMLElement>("td[id^='now-']")) {
    const now = page.getElementById(cell.id);
    if (now && now.innerHTML !== cell.innerHTML && !cell.contains(document.activeElement)) cell.innerHTML = now.innerHTML;
  }
}

async function follow(): Promise<never> {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    await look().catch(() => undefined); // a site that is away is asked again
  }
}

void follow();
