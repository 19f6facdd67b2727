// Functions that activations and their slopes use, on a CPU. Contractions begin here, and end in act.cuh.

BEGIN_CONTRACTIONS

// tanh as a quotient of two polynomials, within 4e-7, with the coefficients of Eigen and XLA.
FN float rational_tanh(float x) {
    const float limited = clip(x, -7.90531110763549805f, 7.90531110763549805f), square = limited * limited;
    float       above   = -2.76076847742355e-16f;
    above = above * square + 2.00018790482477e-13f;
    above = above * square + -8.60467152213735e-11f;
    above = above * square + 5.12229709037114e-08f;
    above = above * square + 1.48572235717979e-05f;
    above = above * square + 6.37261928875436e-04f;
    above = above * square + 4.89352455891786e-03f;
    float below = 1.19825839466702e-06f;
    below = below * square + 1.18534705686654e-04f;
    below = below * square + 2.26843463243900e-03f;
    below = below * square + 4.89352518554385e-03f;
    return limited * above / below;
}

FN float sigmoid(float x) { return 1.0f / (1.0f + exp(0.0f - x)); }

// The cumulative probability of the standard normal distribution at x (Abramowitz and Stegun, 7.1.26: within 1.5e-7).
FN float normal_cumulative(float x) {
    const float magnitude = x < 0 ? 0.0f - x : x, t = 1.0f / (1.0f + 0.231641888f * magnitude);
    const float third = (0.530702715f * t - 0.726576014f) * t + 0.710706871f;
    const float tail  = exp(-0.5f * magnitude * magnitude) * t * ((third * t - 0.142248368f) * t + 0.127414796f);
    return x > 0 ? 1.0f - tail : tail;
}
FN float normal_density(float x) { return 0.398942280f * exp(-0.5f * x * x); }
