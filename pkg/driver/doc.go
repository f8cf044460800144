// Package driver is the connection to the CSI driver beside us: it waits for the
// socket, learns who the driver is, sends the calls and notices when the driver
// goes and comes back. An address and deadlines go in; an identity, answers and
// CSI call metrics come out. It never decides what an answer means, never
// retries a call that was sent, never lets a call reach a driver whose identity
// it has not checked, and never lets a secret into a log or an error.
package driver
