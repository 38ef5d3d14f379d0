"""Detached mode, the simplest way: one process that reports metrics. Follows Determined's first detached tutorial."""

from determined.experimental import core_v2


def main() -> None:
    core_v2.init(
        config=core_v2.Config(
            name="singleton", labels=["b", "a"], searcher={"name": "single", "metric": "loss"}, hparams={"rate": 0.1}
        )
    )
    for step in range(100):
        core_v2.train.report_training_metrics(steps_completed=step, metrics={"loss": 1 / (step + 1), "step": step})
        if (step + 1) % 10 == 0:
            core_v2.train.report_validation_metrics(steps_completed=step, metrics={"loss": 2 / (step + 1)})
            core_v2.train.report_progress((step + 1) / 200)
    print("See the experiment at:", core_v2.url_reverse_webui_exp_view())
    core_v2.close()


if __name__ == "__main__":
    main()
