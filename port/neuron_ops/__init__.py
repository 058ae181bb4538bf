"""What runs the port's code on the `neuron` device: device names, compilation, fp8 as bytes."""
