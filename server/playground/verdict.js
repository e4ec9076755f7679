// The end of a comparison: whether both answers are the same token by token, and how much faster one was.

import { compareTokens, decodingRate } from "./figures.js";

/** What to say of two finished runs, and the first place where they differ. */
export function judge(drafted, plain) {
  const { identical, place } = compareTokens(drafted.tokens, plain.tokens);
  const count = identical
    ? `all ${drafted.tokens.length} tokens`
    : `token ${place + 1} is another (of ${drafted.tokens.length} and ${plain.tokens.length})`;
  return { identical, place, said: `identical: ${identical ? "yes" : "no"}`, count, speed: speedSaid(drafted, plain) };
}

function speedSaid(drafted, plain) {
  const [fast, slow] = [decodingRate(drafted.tokens), decodingRate(plain.tokens)];
  if (!fast || !slow) return "too short to be timed";
  return `${(fast / slow).toFixed(2)}× the speed: ${fast.toFixed(1)} against ${slow.toFixed(1)} tokens a second`;
}

/** Draws it. */
export function drawVerdict(element, verdict) {
  const parts = ["said", "count", "speed"].map((name) => {
    const part = document.createElement("span");
    part.className = name;
    part.textContent = verdict[name];
    return part;
  });
  element.dataset.identical = verdict.identical;
  element.replaceChildren(...parts);
  element.hidden = false;
}
