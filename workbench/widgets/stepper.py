"""Buttons for a session in a notebook: each names one verb, so that a click is an action and stands in the script.

No logic: what a verb answers is shown, and the views below are those of the journal. Needs ipywidgets, when it is made.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import TYPE_CHECKING

from workbench.errors import WorkbenchError
from workbench.stepper import place_text
from workbench.views.errors import ErrorPlot, error_plot
from workbench.views.steps import step_table

if TYPE_CHECKING:
    from ipywidgets import Button

    from workbench.session import Session
    from workbench.views.base import TableView


class Stepper:
    """Step, run, rewind and search by button; shown by being the last value of a cell.

    Args:
        session: what the buttons act on.

    Attributes:
        session: the same.
        module: where to run or rewind to; free text, with the modules of the run offered.
        step, run, back, rewind, divergence: the buttons.
        status: the last answer and where the cursor stands.
        box: all of the above, laid out.
    """

    def __init__(self, session: Session) -> None:
        import ipywidgets

        self.session = session
        names = dict.fromkeys(point.module for point in session.points)
        self.module = ipywidgets.Combobox(
            value="end", options=tuple(name for name in (*names, "prefill", "end") if name), description="module"
        )
        self.step = self._button("Step", "run the next sub-layer", lambda: session.step())
        self.run = self._button("Run to", "run until this module has run", lambda: session.run(until=self.module.value))
        self.back = self._button("Back to", "go back to before this module", lambda: session.rewind(self.module.value))
        self.rewind = self._button("Rewind", "go back to the start", lambda: session.rewind())
        self.divergence = self._button(
            "First divergence", "search where the sides part", lambda: session.first_divergence()
        )
        self.status = ipywidgets.HTML()
        self._buttons = (self.step, self.run, self.back, self.rewind, self.divergence)
        first, second = [self.step, self.module, self.run, self.back], [self.rewind, self.divergence]
        self.box = ipywidgets.VBox([ipywidgets.HBox(first), ipywidgets.HBox(second), self.status])
        self._replace: Callable[[TableView, ErrorPlot], None] | None = None
        self._tell("")

    def views(self) -> tuple[TableView, ErrorPlot]:
        """Return what is shown below the buttons: functions of the journal alone."""
        return step_table(self.session.journal), error_plot(self.session.journal)

    def _ipython_display_(self) -> None:
        from workbench.ipython import show_live

        self._replace = show_live(self.box, *self.views())

    def _button(self, text: str, tooltip: str, verb: Callable[[], object]) -> Button:
        import ipywidgets

        button = ipywidgets.Button(description=text, tooltip=tooltip)
        button.on_click(lambda _: self._ask(verb))
        return button

    def _ask(self, verb: Callable[[], object]) -> None:
        for button in self._buttons:
            button.disabled = True
        self._tell("running ...")
        try:
            self._tell(verb())
        except WorkbenchError as error:
            self._tell(f"{type(error).__name__}: {error}")
        finally:
            for button in self._buttons:
                button.disabled = False
            if self._replace is not None:
                self._replace(*self.views())

    def _tell(self, answer: object) -> None:
        here = place_text(self.session.points, self.session.position)
        text = f"{answer}\nnext: {here}" if str(answer) else f"next: {here}"
        self.status.value = f"<pre>{html.escape(text)}</pre>"
