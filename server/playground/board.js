// The figures above the answers: of the last moments while an answer comes, of the whole when it is there.

import { acceptanceRate, currentRate, decodingRate, recent, stepsOf } from "./figures.js";

const NOTHING = "–";

export class Board {
  constructor(list) {
    this.values = Object.fromEntries([...list.querySelectorAll("dd")].map((value) => [value.id, value]));
  }

  clear() {
    for (const value of Object.values(this.values)) value.textContent = NOTHING;
  }

  /** How it goes at the moment. */
  showNow(run, now) {
    const steps = stepsOf(run.tokens);
    this.#write(run, currentRate(run.tokens, now), recent(steps, now));
  }

  /** How it went. */
  showWhole(run) {
    this.#write(run, decodingRate(run.tokens), stepsOf(run.tokens));
  }

  #write(run, rate, steps) {
    const rated = acceptanceRate(steps);
    const numTokens = steps.reduce((total, step) => total + step.accepted + (step.closing ? 1 : 0), 0);
    const first = run.tokens[0]?.at;
    this.values.rate.textContent = rate ? rate.toFixed(1) : NOTHING;
    this.values.acceptance.textContent = rated === null ? NOTHING : `${Math.round(rated * 100)} %`;
    this.values.per_step.textContent = steps.length ? (numTokens / steps.length).toFixed(2) : NOTHING;
    this.values.first.textContent = first ? `${Math.round((first - run.startedAt) * 1000)} ms` : NOTHING;
  }
}
