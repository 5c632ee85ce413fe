package kind

import "google.golang.org/protobuf/proto"

func validateServiceEntry(proto.Message) []Problem      { return nil }
func serviceEntryEndpointsOnly(_, _ proto.Message) bool { return false }
func validateWorkloadEntry(proto.Message) []Problem     { return nil }
func validateVirtualService(proto.Message) []Problem    { return nil }
func validateDestinationRule(proto.Message) []Problem   { return nil }
func validateGateway(proto.Message) []Problem           { return nil }
func validateService(proto.Message) []Problem           { return nil }
func validateEndpoints(proto.Message) []Problem         { return nil }
func validateWorkload(proto.Message) []Problem          { return nil }
