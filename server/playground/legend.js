// The legend, which also counts: how many tokens came from where.

import { countOrigins } from "./figures.js";
import { OWN_ORIGINS, nameOf } from "./names.js";

const MEANINGS = {
  recovered: "The model’s own token, where the draft had another",
  bonus: "The model’s own token, behind a draft that was right to its end",
  plain: "The model’s own token, of a step without a draft",
};

/** Draws a line for each drafter that was right, and for the model’s own tokens. */
export function drawLegend(list, tokens) {
  const counts = countOrigins(tokens);
  const drafters = [...counts.keys()].filter((name) => !OWN_ORIGINS.includes(name));
  const names = [...(drafters.length ? drafters : ["suffix"]), ...OWN_ORIGINS];
  list.replaceChildren(...names.map((name) => lineOf(name, counts.get(name) ?? 0)));
}

function lineOf(name, count) {
  const line = document.createElement("li");
  const isOwn = OWN_ORIGINS.includes(name);
  const sample = document.createElement("span");
  sample.className = "token";
  sample.dataset.name = name;
  sample.dataset.origin = isOwn ? name : "accepted";
  sample.textContent = isOwn ? nameOf(name) : `accepted: ${nameOf(name)}`;
  const number = document.createElement("span");
  number.className = "count";
  number.textContent = count;
  line.title = MEANINGS[name] ?? `Drafted by ${nameOf(name)}, and what the model says too`;
  line.append(sample, " ", number);
  return line;
}
