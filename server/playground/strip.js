// The strip of steps: a bar for each, of the tokens accepted, the model’s own one behind them, and those rejected.

export class Strip {
  constructor(element, caption) {
    this.element = element;
    this.caption = caption;
    this.introduction = caption.textContent;
    this.clear();
  }

  clear() {
    this.numDrawn = 0;
    this.highest = 1;
    this.element.replaceChildren();
    this.caption.textContent = this.introduction;
  }

  /** Draws the steps that are new; the last one drawn may have grown. */
  show(steps) {
    if (!steps.length) return;
    const from = Math.max(this.numDrawn - 1, 0);
    while (this.element.children.length > from) this.element.lastChild.remove();
    this.element.append(...steps.slice(from).map(barOf));
    this.numDrawn = steps.length;
    this.highest = Math.max(this.highest, ...steps.slice(from).map((step) => step.drafted + 1));
    this.element.style.setProperty("--highest", this.highest);
    this.element.scrollLeft = this.element.scrollWidth;
    this.caption.textContent = said(steps);
  }
}

function barOf(step) {
  const bar = document.createElement("div");
  bar.className = "bar";
  bar.title = step.drafted ? `${step.drafted} drafted, ${step.accepted} accepted` : "No draft";
  bar.append(
    cell("accepted", step.accepted, step.drafter),
    cell("own", step.closing ? 1 : 0, step.closing),
    cell("rejected", step.drafted - step.accepted, step.drafter),
  );
  return bar;
}

function cell(kind, size, name) {
  const part = document.createElement("i");
  part.className = kind;
  part.dataset.name = name;
  part.style.setProperty("--size", size);
  return part;
}

function said(steps) {
  const drafted = steps.reduce((total, step) => total + step.drafted, 0);
  const accepted = steps.reduce((total, step) => total + step.accepted, 0);
  const drafts = steps.filter((step) => step.drafted).length;
  return `${steps.length} steps, ${drafts} with a draft: ${drafted} tokens drafted, ${accepted} accepted`;
}
