"""Step 1: train on one GPU, or on the CPU where there is none.

python singlegpu.py --total_epochs 50 --save_every 10 --batch_size 32
"""

import torch
from torch import nn
from torch.utils.data import DataLoader
from toy import argument_parser, make_dataset, make_model, make_optimizer, mean_loss, say

CHECKPOINT = "checkpoint.pt"


class Trainer:
    """Runs epochs over the data and saves the weights now and then."""

    def __init__(
        self,
        model: nn.Module,
        loader: DataLoader,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        save_every: int,
    ) -> None:
        self.model = model
        self.loader = loader
        self.optimizer = optimizer
        self.device = device
        self.save_every = save_every

    def train(self, total_epochs: int) -> None:
        for epoch in range(total_epochs):
            self._run_epoch(epoch)
            if epoch % self.save_every == 0 or epoch == total_epochs - 1:
                torch.save(self.model.state_dict(), CHECKPOINT)
                say(f"Epoch {epoch} | Training checkpoint saved at {CHECKPOINT}")

    def _run_epoch(self, epoch: int) -> None:
        batch_size = min(self.loader.batch_size, len(self.loader.sampler))
        say(f"[GPU0] Epoch {epoch} | Batchsize: {batch_size} | Steps: {len(self.loader)}")
        for features, targets in self.loader:
            self.optimizer.zero_grad()
            prediction = self.model(features.to(self.device))
            nn.functional.mse_loss(prediction, targets.to(self.device)).backward()
            self.optimizer.step()


def main() -> None:
    args = argument_parser("train on one device").parse_args()
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    dataset = make_dataset()
    model = make_model().to(device)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, pin_memory=device.type == "cuda")
    Trainer(model, loader, make_optimizer(model), device, args.save_every).train(args.total_epochs)
    say(f"Final loss {mean_loss(model, dataset, device):.8f}")


if __name__ == "__main__":
    main()
