"""Accelerate, as its users write it."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from report import report


def main() -> None:
    set_seed(7)
    accelerator = Accelerator(cpu=True)
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    inputs = torch.randn(256, 8)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    net, optimizer, loader = accelerator.prepare(net, optimizer, torch.utils.data.DataLoader(data, batch_size=16))
    for _ in range(2):
        for batch, wanted in loader:
            with accelerator.accumulate(net):
                loss = torch.nn.functional.mse_loss(net(batch), wanted)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    mean = accelerator.gather_for_metrics(loss.detach().reshape(1)).mean().item()
    report(net, mean)
    accelerator.end_training()


main()
