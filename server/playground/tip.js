// What is told of the token that is pointed at. Knows how to say it, and where there is room for it.

import { originName } from "./figures.js";
import { nameOf } from "./names.js";

const MARGIN = 8;

export class Tip {
  constructor(element) {
    this.element = element;
    this.span = null;
  }

  /** Tells of a token beside its span; of nothing when there is none. */
  show(pointed) {
    this.span?.removeAttribute("aria-describedby");
    this.span = pointed?.span ?? null;
    this.element.hidden = !pointed;
    if (!pointed) return;
    this.element.replaceChildren(...linesOf(pointed.token, pointed.place));
    this.span.setAttribute("aria-describedby", this.element.id);
    this.#place(pointed.span);
  }

  #place(span) {
    const at = span.getClientRects()[0] ?? span.getBoundingClientRect();
    const { width, height } = this.element.getBoundingClientRect();
    const left = Math.min(Math.max(at.left, MARGIN), window.innerWidth - width - MARGIN);
    const below = at.bottom + MARGIN;
    const top = below + height < window.innerHeight ? below : at.top - height - MARGIN;
    this.element.style.left = `${left + window.scrollX}px`;
    this.element.style.top = `${top + window.scrollY}px`;
  }
}

function linesOf(token, place) {
  const head = document.createElement("p");
  head.className = "token-text";
  head.dataset.name = originName(token);
  head.textContent = token.text === "" ? "(no text)" : JSON.stringify(token.text);
  const list = document.createElement("dl");
  for (const [name, value] of factsOf(token, place)) {
    const term = document.createElement("dt");
    const told = document.createElement("dd");
    term.textContent = name;
    told.textContent = value;
    list.append(term, told);
  }
  return [head, list];
}

function factsOf(token, place) {
  const facts = [
    ["Origin", originSaid(token)],
    ["Probability", `${percent(Math.exp(token.logprob))} (log ${token.logprob.toFixed(3)})`],
    ...(token.margin === null ? [] : [["Margin", marginSaid(token.margin)]]),
    ["Token", `${place + 1} of the answer, id ${token.token_id}`],
  ];
  if (token.draft_position !== null) facts.splice(1, 0, ["Draft", draftSaid(token)]);
  return facts;
}

function originSaid(token) {
  const said = {
    accepted: () => `drafted by ${nameOf(token.drafter)}, accepted`,
    recovered: () => "recovered: the draft had another token here",
    bonus: () => "bonus: behind a draft that was right to its end",
    plain: () => "plain: this step had no draft",
  };
  return said[token.origin]();
}

function marginSaid(margin) {
  const far = Math.abs(margin).toFixed(3);
  return margin < 0 ? `${far} behind the likeliest` : `${far} before the next`;
}

function draftSaid(token) {
  const whole = `${token.draft_length} by ${nameOf(token.drafter)}`;
  if (token.origin === "bonus") return `behind ${whole}`;
  return `token ${token.draft_position + 1} of ${whole}`;
}

function percent(share) {
  return `${(share * 100).toFixed(share > 0.0995 ? 1 : 3)} %`;
}
