"""The page that `rankfall explore` opens: a marimo notebook that lays out what the other files of this room make."""

import marimo

# /// script
# [tool.marimo.display]
# theme = "system"
# ///


app = marimo.App(width="full", app_title="rankfall", css_file="page.css", html_head_file="head.html")


with app.setup:
    import marimo as mo

    from rankfall.explorer import head_curves, same_result, stored, widgets
    from rankfall.explorer.head_curves import head_view
    from rankfall.explorer.state import (
        TABS,
        HeadState,
        PageState,
        StoredState,
        TokenState,
        from_query,
        keys,
        link_of,
        to_query,
    )
    from rankfall.explorer.stored import draw_audits, draw_runs
    from rankfall.explorer.token_plots import token_view
    from rankfall.explorer.widgets import script, side_by_side


@app.cell
def _():
    # The link is read once. Nothing here may keep the parameters themselves: whoever names them runs again with them.
    start, unread = from_query(mo.query_params().to_dict())
    tab = mo.ui.tabs(dict.fromkeys(TABS, ""), value=start.tab)
    mo.vstack(
        [
            mo.md("# rankfall\nWhere a transformer loses rank, and what keeps it."),
            mo.Html(script()),
            *([mo.callout(widgets.as_text("\n".join(unread)), kind="warn")] if unread else []),
            tab,
        ]
    )
    return start, tab


# Controls are laid out in the cell that makes them: a cell that named them would send them anew with every move.
@app.cell
def _(start):
    mask_name = mo.ui.dropdown(list(widgets.mask_kinds()), value=start.token.mask.split(":")[0], label="mask")
    token_knobs = mo.ui.dictionary(
        {
            _name: widgets.widget(TokenState, _name, getattr(start.token, _name))
            for _name in widgets.controls(TokenState)
            if _name != "mask"
        }
    )

    def _row(*names):
        return widgets.row([token_knobs[name] for name in names])

    token_controls = mo.vstack(
        [
            _row("tokens", "width", "depth", "temperature"),
            _row("norm", "value", "residual"),
            mo.accordion({"More settings": _row("query_key", "heads", "placement", "sink", "seed")}),
        ],
        gap=0.5,
    )
    shown_controls = widgets.row(
        [
            token_knobs["view"],
            token_knobs["layer"],
            mo.md("marks the curves, and sets the tokens and the attention below"),
        ]
    )
    mask_choice = mo.as_html(mask_name)
    return mask_choice, mask_name, shown_controls, token_controls, token_knobs


@app.cell
def _(mask_choice, mask_name, start):
    mask_numbers = widgets.mask_numbers(mask_name.value, start.token.mask)
    mask_controls = widgets.row([mask_choice, *mask_numbers.elements.values()])
    return mask_controls, mask_numbers


@app.cell
def _(mask_controls, shown_controls, tab, token_controls):
    mo.stop(tab.value != TABS[0])
    mo.vstack([mask_controls, token_controls, shown_controls], gap=0.5)
    return


# Few cells, since each tells the browser how it fares: one for all that a move changes on the screen, one for what
# can wait until it is drawn.
@app.cell
def _(mask_name, mask_numbers, tab, token_knobs):
    token = TokenState(mask=widgets.mask_text(mask_name.value, mask_numbers.value), **token_knobs.value)
    token_view(token) if tab.value == TABS[0] else None
    return (token,)


@app.cell
def _(start):
    head_dim = widgets.widget(HeadState, "dim", start.head.dim)
    head_count = widgets.widget(HeadState, "heads", start.head.heads)
    # Apart from the others: the planner's table is laid out anew only for what it shows.
    model_knobs = mo.ui.dictionary(
        {_name: widgets.widget(HeadState, _name, getattr(start.head, _name)) for _name in ("layers", "context")}
    )
    dim_choice = mo.as_html(head_dim)
    other_choices = [mo.as_html(_one) for _one in (head_count, *model_knobs.elements.values())]
    return dim_choice, head_count, head_dim, model_knobs, other_choices


@app.cell
def _(dim_choice, head_dim, other_choices, start):
    # Ranks end at the width.
    head_rank = widgets.slider(
        [*range(1, int(head_dim.value) + 1)], min(start.head.rank, int(head_dim.value)), "rank r"
    )
    head_controls = widgets.row([dim_choice, head_rank, *other_choices])
    return head_controls, head_rank


@app.cell
def _(head_controls, tab):
    mo.stop(tab.value != TABS[1])
    head_controls
    return


@app.cell
def _(head_count, head_dim, head_rank, model_knobs, tab):
    head = HeadState(
        dim=int(head_dim.value), rank=int(head_rank.value), heads=int(head_count.value), **model_knobs.value
    )
    head_view(head) if tab.value == TABS[1] else None
    return (head,)


@app.cell
def _(head_dim, model_knobs, tab):
    mo.stop(tab.value != TABS[1])
    mo.vstack(
        [
            side_by_side(head_curves.plan_table(head_curves.plan_rows(int(head_dim.value), **model_knobs.value))),
            mo.md("*The first row is the usual choice; nothing is timed here.*"),
        ],
        gap=0.25,
    )
    return


@app.cell
def _(start):
    stored_knobs = mo.ui.dictionary(
        {
            name: widgets.widget(StoredState, name, getattr(start.stored, name))
            for name in ("measure", "seen", "error")
        }
    )
    reread = mo.ui.button(label="read again", value=0, on_click=lambda times: times + 1)
    audit_controls = mo.vstack(
        [mo.md("### Audits"), widgets.row([stored_knobs["measure"], stored_knobs["seen"], reread])]
    )
    run_controls = mo.vstack([mo.md("### Runs"), stored_knobs["error"]])
    return audit_controls, reread, run_controls, stored_knobs


@app.cell
def _(reread, tab):
    mo.stop(tab.value != TABS[2])
    reread.value  # pressed, the folders are read anew
    store_folder, report_folder = stored.places()
    audits, unreadable = stored.stored_audits(report_folder)
    runs = stored.stored_runs(store_folder)
    return audits, report_folder, runs, store_folder, unreadable


@app.cell
def _(stored_knobs):
    kept = StoredState(**stored_knobs.value)
    return (kept,)


@app.cell
def _(audit_controls, tab):
    mo.stop(tab.value != TABS[2])
    audit_controls
    return


@app.cell
def _(audits, kept, report_folder, unreadable):
    _nothing = mo.md(f"No audit under `{report_folder}`. Make one: `rankfall audit smollm2 --out reports/smollm2`")
    mo.vstack(
        [
            side_by_side(draw_audits(audits, kept.measure, kept.seen)) if audits else _nothing,
            *(widgets.as_text(_problem) for _problem in unreadable),
        ]
    )
    return


@app.cell
def _(run_controls, tab):
    mo.stop(tab.value != TABS[2])
    run_controls
    return


@app.cell
def _(kept, runs, store_folder):
    _nothing = mo.md(f"No runs in `{store_folder}`. Make some: `rankfall sweep smoke --store {store_folder}`")
    mo.vstack(
        [
            *([widgets.as_text(runs.problem)] if runs.problem else []),
            side_by_side(draw_runs(runs.rows, kept.error)) if runs.rows else _nothing,
        ]
    )
    return


@app.cell
def _(runs, store_folder):
    mo.stop(not runs.rows)
    mo.vstack(
        [
            widgets.as_text(f"All have: {stored.settled(runs.rows)}."),
            mo.ui.table(stored.runs_table(runs.rows), selection=None, page_size=15),
            mo.md(f"```sh\nrankfall runs --store {store_folder}\n```"),
        ]
    )
    return


@app.cell
def _(head, kept, tab, token):
    _state = PageState(tab=tab.value, token=token, head=head, stored=kept)
    _wanted, _shown = to_query(_state), mo.query_params()
    for _key in keys():
        if _key in _wanted and _shown.get(_key) != _wanted[_key]:
            _shown.set(_key, _wanted[_key])
        elif _key not in _wanted and _key in _shown:
            _shown.remove(_key)
    _same = {TABS[0]: same_result.token_words(token), TABS[1]: same_result.head_words(head)}.get(tab.value)
    mo.accordion(
        ({"The same result on the command line and in Python": mo.md(_same)} if _same else {})
        | {
            "Share what you see": mo.md(
                "The address above is the link. On another machine:\n\n"
                f"```sh\nrankfall explore --link '{link_of(_state)}'\n```"
            )
        }
    )
    return


if __name__ == "__main__":
    app.run()
