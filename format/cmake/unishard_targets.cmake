# Helpers that every folder's CMakeLists.txt uses: warnings, sanitizers, the layering check.

add_library(unishard_build_flags INTERFACE)
target_compile_features(unishard_build_flags INTERFACE cxx_std_20)
target_compile_options(unishard_build_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wnon-virtual-dtor
  -Woverloaded-virtual -Wdouble-promotion -Wformat=2 -Wimplicit-fallthrough)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  target_compile_options(unishard_build_flags INTERFACE -Wno-restrict -Wno-array-bounds)  # GCC bug 105651: false alarms in std::string
endif()
if(CMAKE_UNITY_BUILD)
  target_compile_options(unishard_build_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)  # takes the sources for headers
endif()
if(UNISHARD_WARNINGS_AS_ERRORS)
  target_compile_options(unishard_build_flags INTERFACE -Werror)
endif()
if(UNISHARD_SANITIZE)
  target_compile_options(unishard_build_flags INTERFACE
    -fsanitize=${UNISHARD_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(unishard_build_flags INTERFACE -fsanitize=${UNISHARD_SANITIZE})
endif()
if(UNISHARD_FUZZ)
  target_compile_options(unishard_build_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(UNISHARD_COVERAGE)
  target_compile_options(unishard_build_flags INTERFACE --coverage -fprofile-update=atomic)
  target_link_options(unishard_build_flags INTERFACE --coverage)
endif()

# unishard_library(NAME SOURCES...): a static library `unishard_NAME`, alias `unishard::NAME`, with
# the folder's include/ public and src/ private.
function(unishard_library name)
  add_library(unishard_${name} STATIC ${ARGN})
  add_library(unishard::${name} ALIAS unishard_${name})
  target_include_directories(unishard_${name}
    PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
  target_compile_features(unishard_${name} PUBLIC cxx_std_20)
  set_target_properties(unishard_${name} PROPERTIES CXX_EXTENSIONS OFF EXPORT_NAME ${name})
  target_link_libraries(unishard_${name} PRIVATE $<BUILD_INTERFACE:unishard_build_flags>)
endfunction()

# Installs libraries of one export (libraries, trainer), and the folder's public headers, each of which must compile alone
# (target all_verify_interface_header_sets). The header for libhdf5 is for this project's own libraries.
function(unishard_install export)
  list(GET ARGN -1 last)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/include/*.hpp)
  list(FILTER headers EXCLUDE REGEX "/hdf5_(library|driver).hpp$")
  target_sources(${last} PUBLIC FILE_SET HEADERS BASE_DIRS ${CMAKE_CURRENT_SOURCE_DIR}/include FILES ${headers})
  install(TARGETS ${ARGN} EXPORT unishard-${export} COMPONENT development FILE_SET HEADERS COMPONENT development)
endfunction()

# Most of a small file's build is parsing the same headers: once per library instead.
function(unishard_precompile target)
  target_precompile_headers(${target} PRIVATE <nlohmann/json.hpp> <fmt/format.h> <filesystem> <functional> <map> <memory>
                                              <mutex> <optional> <span> <string> <unordered_map> <vector>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
    # The same bug again: GCC 12 misjudges the sizes in std::string's code when it comes from a precompiled header.
    target_compile_options(${target} PRIVATE -Wno-stringop-overflow -Wno-stringop-overread)
  endif()
endfunction()

# What parses options and prints, and tests: half of the time to build them is optimisation that nobody notices.
function(unishard_build_quickly target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# Stops the configure when a library whose name contains one of the words is reachable from `target`.
function(unishard_forbid_links target)
  if(NOT TARGET ${target})
    return()
  endif()
  set(seen)
  set(queue ${target})
  while(queue)
    list(POP_FRONT queue item)
    if(item IN_LIST seen)
      continue()
    endif()
    list(APPEND seen ${item})
    if(NOT item STREQUAL target)
      foreach(word IN LISTS ARGN)
        if(item MATCHES "${word}" AND NOT item MATCHES "^unishard")
          message(FATAL_ERROR "layering: ${target} must not link ${word}, but reaches '${item}'")
        endif()
      endforeach()
    endif()
    if(TARGET ${item})
      foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
        get_target_property(libraries ${item} ${property})
        if(libraries)
          list(APPEND queue ${libraries})
        endif()
      endforeach()
    endif()
  endwhile()
endfunction()

# Stops the configure when an include runs upwards between the folders of `root`, given from the lowest to the highest: a file
# may include its own folder and those named before it. A header of `prefix` (the public ones) belongs to the folder that has
# the source of the same name.
function(unishard_check_rooms root prefix)
  file(GLOB_RECURSE files RELATIVE ${root} CONFIGURE_DEPENDS ${root}/*.hpp ${root}/*.cpp ${root}/*.cu)
  foreach(file IN LISTS files)
    unishard_room_of(room ${file} ${ARGN})
    get_filename_component(extension ${file} EXT)
    get_filename_component(name ${file} NAME_WE)
    if(NOT extension STREQUAL ".hpp")
      set(room_of_${name} "${room}")
    endif()
  endforeach()
  foreach(file IN LISTS files)
    unishard_room_of(room ${file} ${ARGN})
    list(FIND ARGN "${room}" own)
    file(STRINGS ${root}/${file} includes REGEX "^#include \"")
    foreach(line IN LISTS includes)
      string(REGEX REPLACE "^#include \"([^\"]*)\".*" "\\1" header "${line}")
      get_filename_component(name ${header} NAME_WE)
      if(header MATCHES "^${prefix}/")
        set(room "${room_of_${name}}")
      else()
        unishard_room_of(room ${header} ${ARGN})
      endif()
      list(FIND ARGN "${room}" other)
      if(own GREATER_EQUAL 0 AND other GREATER own)
        message(FATAL_ERROR "rooms: ${root}/${file} includes ${header}, which is above it (lowest first: ${ARGN})")
      endif()
    endforeach()
  endforeach()
endfunction()

# The longest of the given folders that `file` lies in, or nothing.
function(unishard_room_of out file)
  set(found "")
  string(LENGTH "${found}" longest)
  foreach(room IN LISTS ARGN)
    string(LENGTH "${room}" length)
    if(file MATCHES "^${room}/" AND length GREATER longest)
      set(found ${room})
      set(longest ${length})
    endif()
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()
