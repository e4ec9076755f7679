// One answer on the page: a span for each token, coloured by where it came from, and reached by arrow keys.

import { originName } from "./figures.js";

export class AnswerView {
  /** `onPoint` is told which token is pointed at, with its place and its span, and of nothing when none is. */
  constructor(article, onPoint) {
    this.article = article;
    this.text = article.querySelector(".text");
    this.note = article.querySelector(".note");
    this.onPoint = onPoint;
    this.clear();
    this.text.addEventListener("keydown", (event) => this.#onKey(event));
    this.text.addEventListener("focusin", (event) => this.#point(event.target));
    this.text.addEventListener("focusout", () => onPoint(null));
    this.text.addEventListener("pointerover", (event) => this.#point(event.target));
    this.text.addEventListener("pointerleave", () => onPoint(null));
  }

  clear() {
    this.tokens = [];
    this.text.replaceChildren();
    this.note.textContent = "";
    this.setBusy(false);
  }

  setBusy(isBusy) {
    this.text.ariaBusy = String(isBusy);
    this.text.classList.toggle("busy", isBusy);
  }

  /** Draws the tokens that are new. */
  show(tokens) {
    const added = tokens.slice(this.tokens.length).map((token, index) => spanOf(token, this.tokens.length + index));
    this.tokens = [...tokens];
    this.text.append(...added);
  }

  /** Marks the token at which another answer goes its own way. */
  markDifference(place) {
    this.#span(place)?.classList.add("different");
  }

  #span(place) {
    return this.text.querySelector(`[data-place="${place}"]`);
  }

  #point(element) {
    const span = element.closest("[data-place]");
    if (!span) return;
    const place = Number(span.dataset.place);
    this.onPoint({ token: this.tokens[place], place, span });
  }

  #onKey(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const spans = [...this.text.children];
    if (!step || !spans.length) return;
    event.preventDefault();
    const at = spans.indexOf(document.activeElement);
    const next = at < 0 ? 0 : Math.min(Math.max(at + step, 0), spans.length - 1);
    spans[next].focus();
  }
}

function spanOf(token, place) {
  const span = document.createElement("span");
  span.textContent = token.text;
  span.className = "token";
  span.tabIndex = -1;
  span.dataset.place = place;
  span.dataset.origin = token.origin;
  span.dataset.name = originName(token);
  return span;
}
