"""The quantitative claims in the running text of both papers, and what was measured here.

A claim with an `outcome` states our number with links to the pages that have it; tests look every number up there. A
claim without one belongs to an experiment: until that is published the claim is "not run" at the experiment's cost,
afterwards the experiment's outcome and finding are shown."""

from __future__ import annotations

from dataclasses import dataclass

PERFORMANCE = "[performance](performance.md{})"
MEMORY = PERFORMANCE.format("#memory-in-training")
DECODING = PERFORMANCE.format("#decoding")
TRANSLATION = PERFORMANCE.format("#translation")
STAIRCASE = PERFORMANCE.format("#staircase")
TRAINING = PERFORMANCE.format("#training")


@dataclass(frozen=True)
class Claim:
    where: str
    "Section of the paper."
    claim: str
    "In our own words."
    outcome: str = ""
    ours: str = ""
    "Our numbers, with links to the pages that have them; what a measurement would cost if there is none."
    experiment: str = ""


def page(experiment: str) -> str:
    return f"[{experiment}](results/{experiment}-laptop.md)"


FEEDBACK = (
    Claim(
        "1, 3.3",
        "The memory of a stream is smaller than a Transformer's by a factor of L, the number of layers",
        "agrees",
        f"With 8 layers the states have 1,048,592 and 8,388,624 bytes, a factor of 8.00 ({DECODING})",
    ),
    Claim(
        "1",
        "A model needs half the GPU memory, in training and in inference substantially less",
        "does not",
        "Peak of a training step, Transformer-XL over Feedback: 1.01 and 1.14 at the shape of the random walk, 1.24 at "
        f"that of char-PTB ({MEMORY}). Only the state in inference is smaller, by 8.00 ({DECODING})",
    ),
    Claim(
        "3.3",
        "The weights of the layers in the memory are the only new parameters",
        "agrees",
        "With 4 layers and own projections per layer Feedback has 859,269 parameters and the Transformer 859,264 "
        f"({page('feedback.table4')})",
    ),
    Claim(
        "3.3",
        "Larger batches make up for most of the lost parallelism: training is not much slower",
        "agrees",
        "Speed over Transformer-XL on two CPU cores: 1.40, 1.64 and 1.72 with batches of 16, 64 and 256 at the shape "
        f"of the random walk, 1.43 at that of char-PTB and 1.02 at that of enwik8 ({TRAINING})",
    ),
    Claim(
        "3.3, 4.2.2, 4.3.4",
        "Agents train as fast as with a Transformer, because frames arrive one at a time (table 5: 22.3K frames per "
        "second both)",
        "agrees",
        f"Feedback trains at 9,666 frames per second and the Transformer at 7,136 ({page('feedback.table5.agents')})",
    ),
    Claim(
        "4.1.1",
        "Trained on 40 digits and tested on 400, Feedback copies and reverses far better",
        "does not",
        f"Characters right at 400 when copying: 14.7% and 15.8% for the Transformer ({page('feedback.table1.copy')}); "
        f"when reversing 10.6% and 11.0% ({page('feedback.table1.reverse')})",
    ),
    Claim(
        "4.1.1",
        "Over counts up to 1,000 Feedback counts far better",
        "inconclusive",
        f"Up to 200 all models make no mistake; 1,000 was not run ({page('feedback.table1.counting-long')})",
    ),
    Claim(
        "4.1.2",
        "Random walk: the Transformer stays at 68% accuracy, Feedback has 100%",
        "agrees",
        "Feedback has 99.8, 99.6 and 98.6%, the Transformer 12.5, 16.1 and 18.2% "
        f"({page('feedback.table1.random-walk')})",
    ),
    Claim(
        "4.1.2",
        "Programs with 3 variables: an LSTM has 82.8%, a Transformer of twice the depth 47.4%, Feedback solves them "
        "(99.1)",
        experiment="feedback.table1.algorithmic-3",
    ),
    Claim(
        "4.1.2",
        "Programs with 5 variables: the LSTM falls to 32.1%, the deeper Transformer has 29.1%, Feedback 92.6",
        experiment="feedback.table1.algorithmic-5",
    ),
    Claim(
        "4.2.1",
        "With a decoder of one layer Feedback has 28.3 BLEU, the Transformer 27.3",
        "does not",
        "Multi30k, two seeds: 35.4 and 36.1 for Feedback, 36.2 and 36.4 for the Transformer "
        f"({page('feedback.figure4.translation')})",
    ),
    Claim(
        "4.2.1",
        "From 6 decoder layers to 1, Feedback loses only 1 BLEU",
        "does not",
        f"From 4 layers to 1: 38.5 to 35.4 and 36.1 ({page('feedback.figure4.translation')})",
    ),
    Claim(
        "4.2.1",
        "A decoder of 1 layer is 4.2 times as fast as one of 6",
        "partly",
        "2.07 times with width 256 and 2.32 with 512, encoder and output scores included; without them 3.36 and 3.68 "
        f"({TRANSLATION})",
    ),
    Claim(
        "4.2.1",
        "An encoder of 12 layers with a decoder of 2 reaches 29.0 BLEU",
        "not run",
        "a part of feedback.figure4.translation at paper scale: about 210.3 days on one GPU of 15 TFLOP/s",
    ),
    Claim(
        "4.2.1",
        "A deeper encoder hardly slows down decoding",
        "partly",
        "An encoder of 6 layers takes 13% of the time with a decoder of 2 and width 256, 20% with width 512; 12 layers "
        f"were not measured ({TRANSLATION})",
    ),
    Claim(
        "4.3.3",
        "WikiText-103: Feedback trains for 3.5 days, a Transformer for 1.2, almost three times as fast",
        "inconclusive",
        "On two CPU cores Feedback has 1.02 to 1.72 times the Transformer-XL's speed, depending on shape and batch "
        f"({TRAINING}); no GPU was available",
    ),
    Claim(
        "4.3.3",
        "WikiText-103: Feedback of half the size equals Transformer-XL (18.3); a Transformer of its size has 19.9",
        experiment="feedback.table3",
    ),
    Claim(
        "4.3.3",
        "enwik8: 12 layers, a third of Transformer-XL's size, reach 0.96 bits per byte, better than Transformer-XL",
        "inconclusive",
        "At equal size 2.319 bits per byte and the Transformer 2.313, in validation 2.286 and 2.320; larger "
        f"Transformers were not run ({page('feedback.table4')})",
    ),
    Claim(
        "4.3.4",
        "Language modeling: 3.7 times as many words per second in inference (table 5: 2,176 and 592)",
        "does not",
        f"1.46 times with states of equal total size, 1.03 to 1.35 with equal batches ({DECODING})",
    ),
    Claim(
        "4.3.4",
        "Sharing keys and values makes inference almost three times as fast, the shallower model adds 10%",
        "partly",
        "Sharing makes it faster, by less: 1.34 times for one stream, 1.35 and 1.06 times for 32 with spans of 512 and "
        f"2,048, 1.46 times with keys and values of equal total size ({DECODING})",
    ),
    Claim(
        "4.3.4",
        "Language modeling: a Transformer trains 3.5 times as fast (table 5: 296K and 84.4K)",
        experiment="feedback.table5.words",
    ),
    Claim(
        "4.3.4",
        "Translation with 2 decoder layers: 1.7 times as many words per second (table 5: 5,410 and 3,190)",
        "does not",
        f"1.05 times our Transformer's with width 256, 1.10 with 512; 2.97 and 2.66 times Marian's ({TRANSLATION})",
    ),
    Claim(
        "4.3.4",
        "Translation: a Transformer trains 2.2 times as fast (table 5: 280K and 126K)",
        experiment="feedback.table5.translation",
    ),
    Claim(
        "6.4",
        "A memory of the first layer is as good as a Transformer, the weighted sum as good as the best layer",
        "partly",
        "Test bits 2.125 for layer 1 and 2.108 for the Transformer; 2.084 for the weighted sum, 2.077 for the best "
        f"layer ({page('feedback.figure8')})",
    ),
    Claim(
        "6.4",
        "WikiText-103: Feedback is ahead by about the same with and without pre-norm, adaptive span and longer BPTT "
        "(table 6: 3.2 to 1.4 perplexity)",
        experiment="feedback.table6",
    ),
    Claim(
        "6.4",
        "char-PTB at equal parameters: Feedback is best with two layers",
        "does not",
        f"2.151, 2.121 and 2.084 test bits with one, two and four layers ({page('feedback.figure9.char-ptb')})",
    ),
)

STAIRCASES = (
    Claim(
        "3.2.1",
        "With one computed pass, a cache reduces the computation N-fold",
        "agrees",
        "A training step of Cached Staircase with one computed pass takes 1.10 times Transformer-XL's operations, of "
        f"Staircase with 2, 4 and 8 passes 1.65, 3.35 and 6.77 times ({STAIRCASE})",
    ),
    Claim(
        "4.2.1",
        "An LSTM solves the random walk (table 1: 0.6% error)",
        "agrees",
        f"0.4, 0.6 and 0.7% with a learning rate of 0.01 ({page('staircase.table1.random-walk')})",
    ),
    Claim(
        "4.2.1",
        "An LSTM has an error of 1% on programs",
        "agrees",
        f"1.6% at 20 statements ({page('staircase.table1.algorithm')})",
    ),
    Claim(
        "4.2.1",
        "A Transformer-XL fails at both tasks (table 1: 84.1 and 48.7% error)",
        "agrees",
        f"87.5, 83.9 and 81.8% on the random walk ({page('staircase.table1.random-walk')}), 70.6% on programs "
        f"({page('staircase.table1.algorithm')})",
    ),
    Claim(
        "4.2.1",
        "Staircase solves both tasks, also with two passes only (tables 6 and 7: 0.5 and 1.0% mean error)",
        "partly",
        "Random walk with chunks of one token and two passes: 0.3, 0.3 and 2.4% "
        f"({page('staircase.table1.random-walk')}); programs with chunks of 2 and four passes: 28.6% "
        f"({page('staircase.table1.algorithm')})",
    ),
    Claim(
        "4.2.1",
        "Cached Staircase with one computed pass does well on both tasks (table 1: 0.1 and 1.2%)",
        "agrees",
        f"Chunks of one token: 1.3, 0.1 and 0.1% on the random walk ({page('staircase.table1.random-walk')}), 5.0% on "
        f"programs ({page('staircase.table1.algorithm')})",
    ),
    Claim(
        "4.2.2",
        "Reddit: 8 passes improve perplexity by about 4 at equal parameters (26.2 to 22.6)",
        experiment="staircase.table1.reddit",
    ),
    Claim(
        "4.2.2",
        "BASE data: 8 passes improve perplexity by about 5 (28.0 to 23.0)",
        experiment="staircase.table1.base",
    ),
    Claim(
        "4.2.2",
        "A Transformer-XL of twice the depth and parameters is still about 1 perplexity worse (23.4 and 22.6)",
        experiment="staircase.table2",
    ),
    Claim(
        "4.2.2",
        "enwik8: Staircase gains little (1.15 to 1.14 bits), Cached Staircase 0.02 and is 0.01 behind Feedback (the "
        "text says 0.1), an LSTM is far worse (1.38)",
        experiment="staircase.table1.enwik8",
    ),
    Claim(
        "4.2.2",
        "More passes cost time: 1.7, 3.3 and 6.4 times a Transformer-XL's step with 2, 4 and 8 (table 2)",
        "agrees",
        f"1.58, 3.16 and 6.31 times ({STAIRCASE})",
    ),
    Claim(
        "4.2.2",
        "All Staircases train much faster than Feedback (table 2: 2.8 times with 8 passes)",
        "does not",
        "On two CPU cores Feedback has 1.40 and 1.64 times the speed of Transformer-XL at the shape of the random walk "
        f"({TRAINING}), and Staircase with 2 passes takes 1.58 times its time ({STAIRCASE}); no GPU was available",
    ),
    Claim(
        "4.2.2",
        "Cached Staircase does not increase the training time (table 2: 246 and 178 ms)",
        "agrees",
        f"1.13 times Transformer-XL's ({STAIRCASE})",
    ),
    Claim(
        "4.2.2",
        "Memory grows with the passes in training, not in inference",
        "partly",
        "Peak of a training step with 2, 4 and 8 passes: 1.38, 2.59 and 5.00 times Transformer-XL's. Decoding token by "
        f"token, a stream also holds keys and values of every pass: 1.49, 2.49 and 4.48 times ({MEMORY})",
    ),
    Claim(
        "4.2.3",
        "Perplexity hardly depends on forward and step size (table 3: 25.2 and 25.0, 23.8 and 23.7)",
        experiment="staircase.table3",
    ),
    Claim(
        "4.2.3",
        "On state tracking large chunks are worse (tables 6 and 7: 0.2% with chunks of 8, 42.1% with 64)",
        "agrees",
        f"2.6, 12.3, 31.0 and 35.4% with chunks of 1, 2, 4 and 8 and four passes ({page('extra.chunk-passes')})",
    ),
    Claim(
        "A",
        "Global Cached Staircase needs eight times the steps on state tracking",
        "agrees",
        "With as many steps as the others 0.1, 14.3 and 37.2% on the random walk, with twice the learning rate 0.1, "
        f"0.5 and 24.8% ({page('staircase.table1.random-walk')})",
    ),
    Claim(
        "B.1",
        "Global Cached Staircase is no better than the others on state tracking",
        "partly",
        f"Worse on the random walk: 0.1, 14.3 and 37.2% ({page('staircase.table1.random-walk')}); better than Cached "
        f"Staircase on programs: 2.1 and 5.0% ({page('staircase.table1.algorithm')})",
    ),
)
