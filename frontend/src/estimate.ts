/** The new-run form: choosing a size fills in the recipe, and the estimate follows. Without this the site does both. */

import { Estimate } from "./forms/estimating";
import { refilled } from "./forms/sizes";

for (const card of document.querySelectorAll<HTMLElement>("[data-estimate]")) {
  const form = card.closest("form");
  if (!form) continue;
  const { estimate: address = "", fields = "" } = card.dataset;
  const estimate = new Estimate(
    address,
    fields.split(" "),
    (name) => String(new FormData(form).get(name) ?? ""),
    (rows) => {
      const isOpen = card.querySelector("details")?.open ?? false;
      card.innerHTML = rows; // from this site's own template, with everything escaped
      card.querySelector("details")?.toggleAttribute("open", isOpen);
    },
  );
  form.addEventListener("input", (event) => {
    const field = event.target as HTMLInputElement | null;
    if (field?.name === "size") resize(form, field);
    estimate.changed(field?.name ?? "");
  });
}

/** Fill in the values of a size, except where a person has typed others. */
function resize(form: HTMLFormElement, chosen: HTMLInputElement): void {
  const shown = form.elements.namedItem("shown_size") as HTMLInputElement | null;
  const radios = [...form.querySelectorAll<HTMLInputElement>("input[name=size]")];
  const before = radios.find((radio) => radio.value === shown?.value);
  const values = Object.fromEntries(new FormData(form)) as Record<string, string>;
  for (const [name, value] of refilled(values, valuesOf(before), valuesOf(chosen))) {
    const field = form.elements.namedItem(name) as HTMLInputElement | HTMLSelectElement | null;
    if (field) field.value = value;
  }
  if (shown) shown.value = chosen.value;
}

function valuesOf(radio: HTMLInputElement | undefined): Record<string, string> {
  return JSON.parse(radio?.dataset["values"] ?? "{}") as Record<string, string>;
}

document.addEventListener("click", (event) => {
  const link = (event.target as Element).closest<HTMLElement>("a[data-fill]");
  const field = document.querySelector<HTMLInputElement>("input[name=hub]");
  if (!link || !field) return;
  event.preventDefault();
  field.value = link.dataset["fill"] ?? "";
  field.focus();
});
