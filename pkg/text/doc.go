// Package text makes text of others fit for what must be valid UTF-8 and short: events, labels of metrics, attributes of
// spans. A string and a limit go in, a string comes out. It does no I/O and knows nothing of what the text is about.
package text
