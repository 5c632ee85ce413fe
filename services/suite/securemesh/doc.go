// Package securemesh tests agents against everything else that meshlog runs: the bus, the
// builder, the certificate authority and a frontend with mutual TLS on its port, in one
// process as `meshlog up --ca` has them, and real Envoys.
package securemesh
