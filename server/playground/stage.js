// Everything that shows a run: the answers, figures, steps, legend, verdict and errors. Asks the server for nothing.

import { AnswerView } from "./answer.js";
import { Board } from "./board.js";
import { stepsOf } from "./figures.js";
import { drawLegend } from "./legend.js";
import { Strip } from "./strip.js";
import { Tip } from "./tip.js";
import { drawVerdict } from "./verdict.js";

const ENDS = { stop: "ended by itself", length: "the most allowed" };

export class Stage {
  constructor(page) {
    const find = (id) => page.getElementById(id);
    const tip = new Tip(find("tip"));
    this.views = {
      drafted: new AnswerView(find("drafted"), (pointed) => tip.show(pointed)),
      plain: new AnswerView(find("plain"), (pointed) => tip.show(pointed)),
    };
    this.hideTip = () => tip.show(null);
    this.board = new Board(find("figures"));
    this.strip = new Strip(find("strip"), find("steps_said"));
    this.legend = find("legend");
    this.verdict = find("verdict");
    this.error = find("error");
    this.announcements = find("announcements");
    drawLegend(this.legend, []);
  }

  clear({ compares }) {
    this.hideTip();
    this.views.drafted.clear();
    this.views.plain.clear();
    this.views.plain.article.hidden = !compares;
    this.board.clear();
    this.strip.clear();
    this.error.hidden = true;
    this.verdict.hidden = true;
    drawLegend(this.legend, []);
  }

  /** An answer has begun, is coming, and is over. */
  begin(which) {
    this.views[which].setBusy(true);
  }

  grow(which, run) {
    this.views[which].show(run.tokens);
    this.views[which].note.textContent = `${run.tokens.length} tokens`;
    if (which === "drafted") this.#count(run, () => this.board.showNow(run, run.now()));
  }

  finish(which, run) {
    this.grow(which, run);
    const view = this.views[which];
    view.setBusy(false);
    view.note.textContent = `${run.tokens.length} tokens, ${ENDS[run.finishReason] ?? "stopped"}`;
    if (which === "drafted") this.#count(run, () => this.board.showWhole(run));
  }

  #count(run, write) {
    write();
    this.strip.show(stepsOf(run.tokens));
    drawLegend(this.legend, run.tokens);
  }

  judge(verdict) {
    drawVerdict(this.verdict, verdict);
    if (!verdict.identical) Object.values(this.views).forEach((view) => view.markDifference(verdict.place));
  }

  /** The server's own words, and the field, type and status that came with them. */
  fail(error) {
    const message = document.createElement("p");
    message.textContent = error.message;
    const details = ["status", "type", "code", "param"].filter((name) => error[name]).map((name) => `${name}: ${error[name]}`);
    const facts = document.createElement("p");
    facts.className = "facts";
    facts.textContent = details.join(" · ");
    this.error.replaceChildren(message, facts);
    this.error.hidden = false;
  }

  /** Tells it to those who do not see the page. */
  announce(text) {
    this.announcements.textContent = text;
  }
}
