"""Statistics of a participation log and the tests behind them."""
