"""Training on one machine: models, text, the inner loop, the learner and its accounts."""
