"""The mathematics of the rules: pure functions from arrays to arrays.

What a rule remembers comes in as an argument and goes out as a result; nothing here is a module,
holds a buffer or changes its arguments (a test looks). The modules of balancing.shift keep the
state, save it, and call these. So this folder is all that a port to another framework translates:

    gap         loads and their target: how far each expert is from it
    steps       what is done to a step: sign, tanh, centring, averages; step sizes; geometries
    histogram   each expert's own quantile, read from counts that add up
    evidence    how much a batch says against the usual one
    newton      curvature's Newton step
    gains       how far curvature trusts one batch
    laplacian   the linear system behind the Newton step
    smoothing   the settled shift: exponential smoothing at the Kalman filter's steady gain

Shapes: E experts, T tokens, B bins. dtypes are part of the mathematics: sums over tokens are whole
numbers, differences are float64, what is remembered is float32.
"""
